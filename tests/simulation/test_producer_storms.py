"""Producers with names, taken over while leaders move, copies go and zones are re-sharded."""

from __future__ import annotations

import pytest

from simulation.clients.producing import NamedCopyStorm, NamedCutOver
from simulation.scenarios.runs import seeds


@pytest.mark.proves("PW-01", "B-08")
@pytest.mark.parametrize("seed", seeds()[::10])
def test_re_sharding_keeps_fences_and_what_was_acknowledged(seed: int) -> None:
    """Each acknowledged row is there once, and no producer writes behind its successor.

    Some order of failovers around a seal would let a paused client overwrite its successor.
    """
    run = NamedCutOver(seed)
    run.run()
    assert run.counts["opened"] > 0, run.counts


@pytest.mark.proves("PW-01")
@pytest.mark.parametrize("seed", seeds()[::10])
def test_copies_keep_fences_and_what_was_acknowledged(seed: int) -> None:
    """Each replica that was copied knows the epochs and has the acknowledged rows of its source.

    Some order of deaths, resumptions and rollbacks would leave a replica that takes a lower epoch.
    """
    run = NamedCopyStorm(seed)
    run.run()
    assert run.counts["opened"] > 0, run.counts
