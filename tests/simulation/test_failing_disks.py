"""Disks that fail for a while, by many seeds: others lead, nothing is lost, all come back."""

from __future__ import annotations

import errno

import pytest

from simulation.scenarios.runs import seeds
from simulation.storms.failing_disks import FailingDisks, P

GAP_SECONDS_MAX = 1.0
"""The way of a report, a record and some frames: leases do not have to run out."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-04")
@pytest.mark.parametrize("seed", seeds()[::4])
def test_no_disk_that_fails_for_a_while_is_for_good(seed: int) -> None:
    """A leader that cannot write would lead on, and its replica stay failed until it is killed."""
    FailingDisks(seed).run()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.proves("NW-04")
def test_while_a_leaders_disk_fails_the_others_take_writes(error: int) -> None:
    """Every write to the partition would end without an answer, beside two replicas in sync."""
    run = FailingDisks(0, crashes=False)
    try:
        leader = run.records[P].leader
        run.fail(leader, error, float("inf"))
        before, failed_at = run.counts["written"], run.loop.time()
        while run.counts["written"] == before:
            assert run.loop.time() - failed_at < GAP_SECONDS_MAX, run.records
            run.write()
            run.coordinate()
            run.step()
        assert run.records[P].leader != leader
        run.calm()
        run.settle()
    finally:
        run.close()
