"""Links that fall silent, by many seeds: replicas come back in sync by themselves."""

from __future__ import annotations

import pytest

from rezone.wire.transport.liveness import Liveness
from simulation.scenarios.runs import seeds
from simulation.storms.half_open import HalfOpen


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-01")
@pytest.mark.parametrize("seed", seeds())
def test_no_end_of_a_stream_is_left_that_nobody_tells(seed: int) -> None:
    """A replica would stay out of sync until its process is killed, as on real networks."""
    run = HalfOpen(seed)
    run.run()
    assert run.counts["healed"] > 0, run.counts


@pytest.mark.proves("NW-01")
def test_without_a_deadline_an_end_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation in which this heals would not have found the fault."""

    def never(_self: Liveness, _now: float) -> bool:
        return False

    monkeypatch.setattr(Liveness, "is_silent", never)
    with pytest.raises(AssertionError, match="not over"):
        HalfOpen(0).run()
