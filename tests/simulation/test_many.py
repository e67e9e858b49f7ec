"""The command that runs many seeds: a failure is told, counted, and ends in an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation import coverage, many
from simulation.many import (
    SHARES,
    STORMS,
    Outcome,
    by_storm,
    chosen,
    failure,
    more,
    rates,
    reached,
    report,
    run,
    unreached,
)


def _breaks(seed: int) -> Counter[str]:
    assert seed != 7, "seven is lost"
    return Counter(cuts=seed, deaths=0)


def test_a_seed_that_fails_says_how_to_repeat_it() -> None:
    """A failure among thousands of seeds could be seen, and not found again."""
    good, bad = (run("test_indexed", seed, {"test_indexed": _breaks}) for seed in (6, 7))

    assert not good.error
    assert "seven is lost" in failure(bad)
    assert "REZONE_SIMULATION_SEED=7 " in failure(bad)
    assert failure(bad).endswith("tests/simulation/test_indexed.py")


@pytest.mark.slow
def test_a_seed_that_hangs_says_where() -> None:
    """It would hold up all that come after it, and nobody would know which one it was."""
    hanging = (
        "from simulation import many\n"
        "import threading\n"
        "lock = threading.Lock()\n"
        "lock.acquire()\n"
        "many.SEED_SECONDS_MAX = 1\n"
        "many.STORMS['test_storms'] = lambda seed: lock.acquire()\n"
        "many._begin()\n"
        "print(many.failure(many.run_limited('test_storms', 5)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", hanging], env=environment, capture_output=True, text=True, check=True
    ).stdout

    assert "TimeoutError: the seed has not ended within 1 s" in said
    assert "in <lambda>" in said
    assert "REZONE_SIMULATION_SEED=5 " in said


def test_rates_count_seeds_and_failures() -> None:
    """Nobody would see how dear a storm has become, or that one fails."""
    outcomes = [Outcome("a", 0, 0.5), Outcome("a", 1, 1.5, "lost"), Outcome("b", 0, 0.25)]

    _, a, b = (line.split() for line in rates(by_storm(outcomes)))

    assert a == ["a", "2", "1", "1000", "60"]
    assert b == ["b", "1", "0", "250", "240"]


def test_what_a_storm_has_reached_is_told() -> None:
    """A storm that makes no fault any more would pass with all of its seeds."""
    outcomes = [run("test_indexed", seed, {"test_indexed": _breaks}) for seed in (2, 3, 7)]

    assert reached(by_storm(outcomes)) == ["test_indexed: cuts 5, deaths 0"]


def test_a_report_counts_seeds_failures_and_simulated_time() -> None:
    """The page of evidence would claim hours that nobody has simulated."""
    good, bad = Outcome("a", 0, 0.5, simulated_seconds=40.0), Outcome("a", 1, 1.5, "lost")
    storm = run("test_claims", 3, {"test_claims": lambda _: Counter(cuts=2)})

    found = report(by_storm([good, bad, storm]))

    assert found["a"] == {"seeds": 2, "failed": 1, "simulated_seconds": 40.0, "counts": {}}
    assert found["test_claims"]["counts"] == {"cuts": 2}


def test_a_storm_that_misses_what_it_is_for_has_more_seeds_and_then_fails() -> None:
    """A storm in which nothing happens any more would pass with all of its seeds."""
    reached = Counter(dict.fromkeys(coverage.REACHED["test_half_open"], 1))
    idle = [Outcome("test_half_open", seed, 0.1, "", Counter(written=1)) for seed in range(20)]
    found = Outcome("test_half_open", 20, 0.1, "", reached)

    assert unreached(by_storm(idle)) == {"test_half_open": ["silences", "half-open", "healed"]}
    assert more(by_storm(idle), 20)[0] == ("test_half_open", 20)
    assert len(more(by_storm(idle), 20)) == coverage.MORE_SEEDS
    assert not unreached(by_storm([*idle, found]))
    assert not unreached(by_storm(idle[:19])), "who runs few seeds looks for something else"


def test_what_storms_are_for_is_of_storms() -> None:
    """A storm that is renamed would have to reach nothing any more."""
    assert coverage.REACHED.keys() <= STORMS.keys()


@pytest.mark.slow
def test_a_seed_knows_how_much_time_has_passed_in_it() -> None:
    """A storm that ends at once would look like one of hours."""
    assert run("test_torn_logs", 1).simulated_seconds > 1


def test_expensive_storms_have_a_share_of_the_seeds() -> None:
    """Of all storms together each has its share of the seeds, and one seed at least.

    CI would take longer than anyone waits, or a storm would never run.
    """
    every = Counter(storm for storm, _ in chosen(sorted(STORMS), 5, 100))

    assert every == {storm: round(100 * SHARES.get(storm, 1)) for storm in STORMS}
    assert {storm for storm, _ in chosen(sorted(STORMS), 5, 1)} == STORMS.keys()


def test_a_storm_that_is_asked_for_by_name_has_all_seeds() -> None:
    """Who looks for a failure would run a part of what they asked for."""
    assert chosen(["test_cuts"], 5, 2) == [("test_cuts", 5), ("test_cuts", 6)]


def test_shares_are_parts_of_storms() -> None:
    """A storm that is renamed would silently have all seeds again."""
    assert SHARES.keys() <= STORMS.keys()
    assert all(0 < share < 1 for share in SHARES.values())


def modules(*, with_text: str = "") -> set[str]:
    """Return the names of the simulation's test modules whose source has this text."""
    files = Path(many.__file__).parent.glob("test_*.py")
    return {path.stem for path in files if with_text in path.read_text()}


def test_storms_bear_the_names_of_their_tests() -> None:
    """What a failure says to run would not be there."""
    assert STORMS.keys() <= modules()


NOT_BY_SEEDS = {"test_stale_reads": "three leases are tried with each seed"}
"""Test modules that take seeds and that `make seeds` leaves out, and why."""


def test_all_tests_with_seeds_are_storms() -> None:
    """Every module that chooses its runs by a seed is among the storms.

    `make seeds` would pass where CI finds a failure: producer storms did that once.
    """
    chosen = modules(with_text="from simulation.scenarios.runs import")
    with_seeds = chosen & modules(with_text="seeds(")

    assert with_seeds - {Path(__file__).stem} - NOT_BY_SEEDS.keys() == STORMS.keys()


@pytest.mark.parametrize("storm", ["test_producer_storms", "test_failing_disks"])
def test_a_seed_counts_the_events_of_its_storm(storm: str) -> None:
    """A storm that does not return what has happened would look like one that does nothing."""
    outcome = run(storm, 1)

    assert not outcome.error
    assert outcome.counts["died"] > 0


@pytest.mark.slow
def test_other_processes_run_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """The command would not start, or say that all is well when nothing has run."""
    code = many.main(["--seeds", "1", "--storms", "test_closed_times", "--processes", "1"])

    assert code == 0
    assert capsys.readouterr().out.split()[-5:-2] == ["test_closed_times", "1", "0"]
