"""Rows of an old partition are given up while new ones pull them: what those do first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from migration_case import LOST, Case, only
from worlds import NOW, record

from rezone.domain.model import world
from rezone.resources.conditions import Reason
from rezone.resources.migration import MigrationState as S
from rezone.wire.layouts import id_of
from rezone.wire.messages import FIRST_PARTITION_EPOCH, LeaderAndIsr, ReshardProgress, Role

NODES = (0, 1, 2)
HEIRS = (id_of(1, 0), id_of(1, 1))
"""Those of four new partitions that overlap with old partition 0 of two."""


def lost_while_resharded(*, targets: int = 4) -> Case:
    """Return a recovery of old partition 0, as its record is about to change."""
    case = Case(S.UNCLEAN_ELECTION)
    case.world.targets = [record() for _ in range(targets)]
    case.world.settings |= {
        "pending": (NODES,) * targets,
        "pending_revision": 2,
        "pending_generation": 1,
    }
    return case


def says(case: Case, target: int, *progress: ReshardProgress) -> None:
    """Let a target's leader say what it has pulled."""
    case.world.reported(target, 0, reshard_progress=progress)


def blank(case: Case, *targets: int) -> None:
    """Let targets have nothing of any source."""
    for target in targets:
        says(case, target, ReshardProgress(source=0), ReshardProgress(source=1))


def records(case: Case) -> dict[int, LeaderAndIsr]:
    """Return the records that the next pass asks for."""
    changes = only(case.decide(), world.ChangeRoutes).changes
    return {change.partition: change.state for change in changes}


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("backfilled", [False, True])
def test_targets_with_rows_begin_again_before_any_are_given_up(*, backfilled: bool) -> None:
    """Rows that were given up would come back at the cut-over, or a seal that nobody knew of."""
    case = lost_while_resharded()
    for target in HEIRS:
        says(case, target, ReshardProgress(source=0, begun=True, backfilled=backfilled))
    made = records(case)
    assert set(made) == {*HEIRS}, "old partition 0 is led before its targets begin again"
    assert {state.partition_epoch for state in made.values()} == {FIRST_PARTITION_EPOCH}
    assert {state.leader_epoch for state in made.values()} == {5}
    # Their leaders are heard of in the new epoch, and have nothing.
    case.world.targets[0], case.world.targets[1] = made[HEIRS[0]], made[HEIRS[1]]
    blank(case, *HEIRS)
    made = records(case)
    assert {p: state.leader for p, state in made.items()} == {0: 2}


def test_a_survivor_leads_at_once_where_targets_have_nothing() -> None:
    """A re-sharding that has not begun to backfill would begin again, or hold a recovery up."""
    case = lost_while_resharded()
    blank(case, *HEIRS)
    assert set(records(case)) == {0}
    case.world.targets = []
    assert set(records(case)) == {0}, "the new partitions are not there yet"


@pytest.mark.proves("B-08", "B-14")
@pytest.mark.parametrize("state", ["", S.UNCLEAN_ELECTION])
def test_rows_of_a_range_that_is_served_elsewhere_are_not_given_up(state: str) -> None:
    """Two partitions would take writes of one range."""
    case = lost_while_resharded()
    case.state = state
    says(case, HEIRS[1], ReshardProgress(source=0, begun=True, sealed=True))
    blank(case, HEIRS[0])
    decision = case.decide()
    assert decision.status.state == S.FAILED
    error = decision.status.last_error
    assert error is not None
    assert (error.reason, error.message) == (
        Reason.UNCLEAN_ELECTION_REFUSED,
        "new partition 1 serves its range, with all its rows",
    )


@pytest.mark.proves("B-14")
@pytest.mark.parametrize(
    "changes", [{"leader_epoch": 3}, {"role": Role.FOLLOWER}, {"reshard_progress": ()}]
)
def test_a_target_whose_leader_says_nothing_is_waited_for(changes: dict[str, Any]) -> None:
    """It may serve the range, and nobody knows."""
    case = lost_while_resharded()
    blank(case, *HEIRS)
    case.world.reported(HEIRS[1], 0, **changes)
    case.now = NOW + timedelta(seconds=20)
    decision = case.decide()
    assert decision.actions == ()
    assert "the leader of new partition 1 has not said" in decision.status.waiting_for
    case.world.silent[0] = 60.0
    assert case.decide().actions == ()


@pytest.mark.proves("B-14")
@pytest.mark.parametrize("others", [False, True], ids=["alone", "another source may be sealed"])
def test_a_target_that_was_lost_with_the_same_disks_begins_again(*, others: bool) -> None:
    """Neither could be given up before the other: both stay lost for ever."""
    case = lost_while_resharded(targets=1)
    for node in (0, 1, 2):
        case.world.reports[HEIRS[0], node] = LOST
    if others:
        case.world.routes[1] = record(leader=1, sealing=True)
    if others:
        assert case.decide().actions == ()
        return
    assert set(records(case)) == {HEIRS[0]}


def test_a_target_that_serves_other_rows_keeps_its_own_and_that_is_told() -> None:
    """Clients' rows would be deleted; or a person not know why the re-sharding stands still."""
    case = lost_while_resharded(targets=1)
    said: tuple[Any, ...] = (
        ReshardProgress(source=0, begun=True, backfilled=True),
        ReshardProgress(source=1, begun=True, sealed=True),
    )
    says(case, HEIRS[0], *said)
    assert set(records(case)) == {0}
    case.state = ""
    recovery = case.decide().status.recovery
    assert recovery is not None
    assert "new partition 0 serves other rows already" in recovery.message
