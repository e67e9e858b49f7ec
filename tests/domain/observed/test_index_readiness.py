"""A leader moves only to a replica whose indexes are nearly as far as its own (DCP-08)."""

from datetime import timedelta

import pytest
from migration_case import Case
from worlds import NOW, World, record

from rezone.domain.model.world import ChangeRoutes, RequestUpgrade
from rezone.domain.observed.readiness import is_close, why_not_close
from rezone.resources.migration import MigrationState as S
from rezone.wire.messages import IndexBuild, IndexPosition, Role

FAR = IndexPosition(9000, "u2")


def lacking(theirs: IndexPosition | None, own: IndexPosition | None) -> str:
    """Return what node 1 waits for, whose log is applied."""
    world = World()
    world.reports = {(0, 0): {"index": theirs}, (0, 1): {"index": own}}
    why = why_not_close(world.view(), 0, record(), 1)
    assert is_close(world.view(), 0, record(), 1) == (not why)
    return why


@pytest.mark.proves("DCP-08")
@pytest.mark.parametrize(
    ("theirs", "own", "why"),
    [
        (None, None, ""),  # a zone without indexes
        (FAR, FAR, ""),
        (FAR, IndexPosition(8500, "u2"), ""),  # the takeover itself waits for the rest
        (FAR, IndexPosition(9100, "u2"), ""),
        (IndexPosition(0, ""), IndexPosition(0, ""), ""),  # the leader has none to be equalled
        (FAR, None, "node 1 has said nothing of its index"),
        (FAR, IndexPosition(0, ""), "node 1's index is 9000 rows behind node 0's"),
        (FAR, IndexPosition(8001, "u2"), ""),
        (FAR, IndexPosition(8000, "u2"), "node 1's index is 1000 rows behind node 0's"),
        (FAR, IndexPosition(9000, "u1"), "node 1's index is of another history than node 0's"),
    ],
)
def test_what_is_waited_for(
    theirs: IndexPosition | None, own: IndexPosition | None, why: str
) -> None:
    """A takeover would begin that has to wait for minutes, or one that could would not."""
    assert lacking(theirs, own) == why


@pytest.mark.proves("DCP-08")
def test_a_leader_does_not_move_to_who_has_not_built_an_index_of_its() -> None:
    """Lookups that were answered would be refused after the move; one by its name tells why."""
    world = World()
    world.settings = {"indexes": {b"x": "by_name", b"y": "by_age"}}
    leader = IndexPosition(9000, "u2", (b"x", b"y", b"dropped"))
    half = IndexPosition(9000, "u2", (b"y",))
    world.reports = {
        (0, 0): {"index": leader},
        (0, 1): {"index": half, "index_builds": (IndexBuild(b"x", 40),)},
    }
    assert why_not_close(world.view(), 0, record(), 1) == "node 1 has built 40 % of index by_name"
    world.reports = {(0, 0): {"index": half}, (0, 1): {"index": half}}
    assert not why_not_close(world.view(), 0, record(), 1), "the leader has no more"
    world.settings = {"indexes": {b"y": "by_age"}}
    world.reports = {(0, 0): {"index": leader}, (0, 1): {"index": half}}
    assert not why_not_close(world.view(), 0, record(), 1), "x was dropped"


def test_a_standby_that_is_close_is_asked_for_its_index_too() -> None:
    """Who is in `iss` has applied everything, which says nothing of its indexes."""
    world = World()
    world.reports = {(0, 0): {"index": FAR}, (0, 1): {"index": IndexPosition(1, "u2")}}
    assert "8999 rows behind" in why_not_close(world.view(), 0, record(iss=(1,)), 1)


@pytest.mark.proves("DCP-08", "B-14")
@pytest.mark.parametrize("state", [S.OPEN_CANDIDATE, S.UPDATE_METADATA_DOWN])
def test_a_migration_says_that_it_waits_for_an_index(state: S) -> None:
    """Nobody would know why a leader does not move, or it would be authorized too early."""
    case = Case(state)
    case.now = NOW + timedelta(seconds=10)
    case.world.reports = {(0, 0): {"index": FAR}, (0, 1): {"index": IndexPosition(5, "u2")}}
    decision = case.decide()
    assert decision.status.waiting_for == "node 1's index is 8995 rows behind node 0's"
    for action in decision.actions:
        if isinstance(action, ChangeRoutes):
            assert all(change.state.next_leader is None for change in action.changes)


@pytest.mark.proves("DCP-08", "RM-05")
def test_a_candidate_is_told_where_the_old_indexer_stopped() -> None:
    """One whose state change was lost would lead with whatever index it has."""
    case = Case(S.UPGRADE_CANDIDATE)
    case.world.reports = {(0, 0): {"role": Role.FOLLOWER, "index": FAR}}
    requests = [a for a in case.decide().actions if isinstance(a, RequestUpgrade)]
    assert [request.index for request in requests] == [FAR]
