"""Calls that share requests, while leaders move, a zone is re-sharded and producers are fenced."""

from __future__ import annotations

import collections

import pytest

from simulation.clients.sharing import SharedCutOver
from simulation.scenarios.runs import seeds


def storm(seed: int) -> collections.Counter[str]:
    """Run one seed; returns what has happened."""
    run = SharedCutOver(seed)
    run.run()
    return run.counts


@pytest.mark.proves("PW-02", "PW-03")
@pytest.mark.parametrize("seed", seeds()[::10])
def test_each_call_has_its_own_end(seed: int) -> None:
    """Acknowledged calls are there once and in order; refused ones are nowhere, and so alone.

    Some order of lost answers, failovers and seals would lose a call, apply one twice, or refuse
    the companions of a call that no node takes.
    """
    assert storm(seed)["acknowledged calls"] > 0
