"""Compare-and-set while leaders move, copies go and zones are re-sharded."""

from __future__ import annotations

import pytest

from simulation.clients.conditional import ConditionalCopyStorm, ConditionalCutOver
from simulation.scenarios.runs import seeds


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("seed", seeds()[::20])
def test_a_conditional_write_counts_once_over_seals(seed: int) -> None:
    """Each is applied once and by its condition, or not at all, as its client was told.

    Some order of failovers around a seal would apply one twice, or over what nobody had seen.
    """
    ConditionalCutOver(seed).run()


@pytest.mark.parametrize("seed", seeds()[::20])
def test_a_conditional_write_counts_once_over_leaders_and_copies(seed: int) -> None:
    """Each is there once, at all replicas, or at none.

    Some order of deaths would tell a client of a mismatch that its own first attempt has made.
    """
    ConditionalCopyStorm(seed).run()
