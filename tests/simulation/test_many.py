"""The command that runs many seeds: a failure is told, counted, and ends in an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import many
from simulation.many import STORMS, Outcome, failure, rates, run


def _breaks(seed: int) -> None:
    assert seed != 7, "seven is lost"


def test_a_seed_that_fails_says_how_to_repeat_it() -> None:
    """A failure among thousands of seeds could be seen, and not found again."""
    good, bad = (run("test_indexed", seed, {"test_indexed": _breaks}) for seed in (6, 7))

    assert not good.error
    assert "seven is lost" in failure(bad)
    assert "REZONE_SIMULATION_SEED=7 " in failure(bad)
    assert failure(bad).endswith("tests/simulation/test_indexed.py")


def test_rates_count_seeds_and_failures() -> None:
    """Nobody would see how dear a storm has become, or that one fails."""
    outcomes = [Outcome("a", 0, 0.5), Outcome("a", 1, 1.5, "lost"), Outcome("b", 0, 0.25)]

    _, a, b = (line.split() for line in rates(outcomes))

    assert a == ["a", "2", "1", "1000", "60"]
    assert b == ["b", "1", "0", "250", "240"]


def test_storms_bear_the_names_of_their_tests() -> None:
    """What a failure says to run would not be there."""
    here = [path.stem for path in Path(many.__file__).parent.glob("test_*.py")]

    assert set(STORMS) <= set(here)


@pytest.mark.slow
def test_other_processes_run_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """The command would not start, or say that all is well when nothing has run."""
    code = many.main(["--seeds", "1", "--storms", "test_closed_times", "--processes", "1"])

    assert code == 0
    assert capsys.readouterr().out.split()[-5:-2] == ["test_closed_times", "1", "0"]
