"""Cuts of all kinds: how long a partition is without a write, and how often its leader changes."""

from __future__ import annotations

import os

import pytest

from rezone.domain.observed import hearing
from simulation.cuts import (
    KINDS,
    Seen,
    node_from_peers,
    operator_from,
    operator_from_idle,
    run_cut,
)

OPERATOR = [kind for kind in KINDS if kind.startswith("operator")]
ONE_WAY_SECONDS_MAX = 6.0
"""An end that is not heard closes after 3 s; what it was promised until then lasts for 2 s more."""
STALLED_SECONDS_MAX = 10.0
"""The simulation's followers wait for 6 s, as its leaders do for followers that owe an ack."""

BOUNDS = {
    "a node from its peers": 3.3,
    "a node from all": 4.5,
    "nothing reaches a node": ONE_WAY_SECONDS_MAX,
    "nobody hears a node": ONE_WAY_SECONDS_MAX,
    "halves": 3.3,
    "bridge": 3.3,
    "flapping": 4.5,
    "a process hangs": 4.5,
    "a process dies": 4.5,
    "a leader stalls": STALLED_SECONDS_MAX,
}
"""The longest gaps that are right; a node that died had 4.35 s before anybody was heard about."""

CUTS_TRIED = 2
MOVES_MAX = 1
FLAPPING_MOVES_MAX = 3


def runs_of(kind: str) -> list[Seen]:
    """Run some of a kind's cuts, or all when many seeds are asked for."""
    cuts = KINDS[kind]
    tried = cuts if os.environ.get("REZONE_SIMULATION_SEEDS") else cuts[:: len(cuts) // 2 or 1]
    return [run_cut(cut) for cut in tried[: len(cuts) if tried is cuts else CUTS_TRIED]]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-02")
@pytest.mark.parametrize("kind", OPERATOR)
def test_partitions_serve_while_the_operator_alone_is_cut_off(kind: str) -> None:
    """It would move leaders to the nodes that it sees, and in-sync sets would lose who is well."""
    for seen in runs_of(kind):
        assert seen.longest < 1.0, seen
        assert not any(seen.changes.values()), seen
        assert seen.reasons & {"NotReached", "OperatorCutOff"}, seen


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-03", "B-06")
@pytest.mark.parametrize("kind", BOUNDS)
def test_a_cut_between_nodes_stops_writes_for_a_bounded_time(kind: str) -> None:
    """A leader that nobody in sync hears would lead on, or leadership would bounce."""
    for seen in runs_of(kind):
        assert seen.longest < BOUNDS[kind], seen
        most = FLAPPING_MOVES_MAX if kind == "flapping" else MOVES_MAX
        assert max(seen.changes.values()) <= most, seen


@pytest.mark.slow
@pytest.mark.proves("NW-02")
def test_a_leader_that_nobody_writes_to_is_not_taken_for_one_that_stalls() -> None:
    """Where nothing is written no offset moves: it would lose what it leads for that."""
    seen = run_cut(operator_from_idle(0))
    assert 0 in seen.led_by.values(), seen
    assert not any(seen.changes.values()), seen


@pytest.mark.slow
@pytest.mark.proves("NW-03")
def test_leaders_whose_followers_hear_them_are_left_alone() -> None:
    """Who is cut off from one node would lose what it leads with two others."""
    seen = run_cut(node_from_peers(0))
    for partition, leader in seen.led_by.items():
        assert seen.changes[partition] == (leader == 0), seen


@pytest.mark.slow
@pytest.mark.proves("NW-02")
def test_without_what_nodes_hear_the_operator_stops_the_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A simulation in which this is well would not have found the fault."""
    nobody = frozenset[int]()
    monkeypatch.setattr(hearing, "followers", lambda *_: (nobody, nobody))
    monkeypatch.setattr(hearing, "heard_by", lambda *_: ())
    assert run_cut(operator_from((0, 1, 2, 3))).longest > 5.0
