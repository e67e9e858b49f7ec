"""Cuts of all kinds: how long a partition is without a write, and how often its leader changes."""

from __future__ import annotations

import pytest

from rezone.domain.observed import hearing
from simulation.scenarios.cuts import (
    BOUNDS,
    KINDS,
    OPERATOR,
    Seen,
    check,
    node_from_peers,
    operator_from,
    operator_from_idle,
    run_cut,
    storm,
)
from simulation.scenarios.runs import EVERY_POINT, seeds


def runs_of(kind: str) -> list[Seen]:
    """Run one of a kind's cuts, or all when many seeds are asked for."""
    cuts = KINDS[kind]
    tried = cuts if EVERY_POINT else cuts[len(cuts) // 2 :][:1]
    return [run_cut(cut) for cut in tried]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-02")
@pytest.mark.parametrize("kind", OPERATOR)
def test_partitions_serve_while_the_operator_alone_is_cut_off(kind: str) -> None:
    """It would move leaders to the nodes that it sees, and in-sync sets would lose who is well."""
    for seen in runs_of(kind):
        check(kind, seen)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-03", "B-06")
@pytest.mark.parametrize("kind", BOUNDS)
def test_a_cut_between_nodes_stops_writes_for_a_bounded_time(kind: str) -> None:
    """A leader that nobody in sync hears would lead on, or leadership would bounce."""
    for seen in runs_of(kind):
        check(kind, seen)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("NW-02", "NW-03")
@pytest.mark.parametrize("seed", seeds()[::40])
def test_a_cut_may_begin_and_end_at_any_moment(seed: int) -> None:
    """A cut that ends while a leader is replaced keeps the bounds of a long one.

    Some moment of a lease or of a report would have leadership bounce, or a replica stay out.
    """
    storm(seed)


@pytest.mark.slow
@pytest.mark.proves("NW-02")
def test_a_leader_that_nobody_writes_to_is_not_taken_for_one_that_stalls() -> None:
    """Where nothing is written no offset moves: it would lose what it leads for that."""
    seen = run_cut(operator_from_idle(0))
    assert 0 in seen.led_by.values(), seen
    assert not any(seen.changes.values()), seen


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.proves("NW-03")
def test_leaders_whose_followers_hear_them_are_left_alone() -> None:
    """Who is cut off from one node would lose what it leads with two others."""
    seen = run_cut(node_from_peers(0))
    for partition, leader in seen.led_by.items():
        assert seen.changes[partition] == (leader == 0), seen


@pytest.mark.long
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
