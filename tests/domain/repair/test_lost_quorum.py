"""A partition whose quorum is lost: what is said of it, who may lead, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from migration_case import LOST, Case, lose_quorum, only, route_of
from worlds import NOW, World, record

from rezone.domain.model import world
from rezone.domain.repair.lost_quorum import PARTITIONS_TOLD_MAX, loss_of, summary
from rezone.domain.repair.repairs import repairs
from rezone.domain.routing import route_leaders, routes
from rezone.domain.zone.status import health_of
from rezone.resources.conditions import Reason
from rezone.resources.migration import MigrationState as S
from rezone.wire.messages import Role


def lost(**changes: Any) -> Case:
    """Return a migration that a person asks rows to be given up by, before its first pass."""
    case = Case("")
    lose_quorum(case)
    case.spec["unclean_election"] |= changes
    return case


def refused(case: Case) -> str:
    """Return why the migration failed; nothing was asked for."""
    decision = case.decide()
    assert decision.status.state == S.FAILED
    assert decision.actions == ()
    error = decision.status.last_error
    assert error is not None
    assert error.reason == Reason.UNCLEAN_ELECTION_REFUSED
    return error.message


def test_a_partition_that_somebody_may_lead_is_not_lost() -> None:
    """People would give rows up that a failover keeps."""
    world = World()
    for isr, eligible, gone in (((0, 1), (), {0}), ((0,), (1,), {0}), ((0, 1), (2,), {0, 1})):
        world.routes[0] = record(isr=isr, eligible=eligible)
        world.reports = {(0, n): LOST for n in gone}
        assert loss_of(world.view(), 0) is None, (isr, eligible, gone)


@pytest.mark.proves("B-04")
def test_a_person_may_have_a_copy_lead_that_was_never_compared() -> None:
    """Where only such a copy has the rows, the zone says so, and only a person makes it lead.

    Without that way out the partition would be gone with its leader's disk.
    """
    world = World()
    world.routes[0] = record(isr=(0, 1))
    world.reports = {(0, 0): LOST, (0, 1): {"uncompared": "s-1"}, (0, 2): LOST}
    loss = loss_of(world.view(), 0)
    assert loss is not None
    assert loss.given_up
    assert "never compared" in loss.text
    assert "all acknowledged rows" in loss.text
    case = lost()
    case.world.routes[0] = record(isr=(0, 1))
    case.world.reports = dict(world.reports)
    decision = case.decide()
    assert decision.status.context is not None
    assert decision.status.context.to_node == 1
    assert decision.status.recovery is not None
    assert "every acknowledged row" in decision.status.recovery.message
    plain = Case("")
    plain.world.routes[0] = record(isr=(0, 1))
    plain.world.reports = {(0, 1): {"uncompared": "s-1"}}
    plain.world.silent[0] = 999.0
    decision = plain.decide()
    assert decision.status.state == S.FAILED
    assert decision.status.last_error is not None
    assert "never compared" in decision.status.last_error.message


def test_the_best_survivor_is_chosen_by_its_last_row_s_epoch_before_its_length() -> None:
    """A leader of the past with a long tail that nobody acknowledged would win."""
    world = World()
    world.routes[0] = record(isr=(0,), replicas=(0, 1, 2, 3, 4))
    rows = {1: (2, 500), 2: (3, 90), 3: (3, 95)}
    world.reports[0, 0] = LOST
    world.reports[0, 4] = LOST
    for node, (epoch, end) in rows.items():
        world.reports[0, node] = {"last_epoch": epoch, "log_end_offset": end}
    loss = loss_of(world.view(), 0)
    assert loss is not None
    assert [s.node for s in loss.survivors] == [3, 2, 1]
    assert (loss.gone, loss.silent, loss.empty) == ((0,), (), (0, 4))
    assert loss.given_up


def test_what_is_lost_and_what_is_only_silent_is_told_apart() -> None:
    """A zone whose nodes restart would look lost; or one that is lost as if it would come back."""
    world = World()
    world.routes[0] = record(isr=(0, 1))
    world.reports[0, 0] = LOST
    world.silent[1] = 30.0
    health = health_of(world.view(), replicas=3, wanted_nodes=5)
    assert health.lost_quorum == ""
    assert health.leaderless == (
        "partition 0: nodes [0] have lost their data, nodes [1] do not answer, "
        "node 2 has rows up to offset 100"
    )
    world.lost.add(1)
    health = health_of(world.view(), replicas=3, wanted_nodes=5)
    assert health.leaderless == ""
    assert health.lost_quorum.startswith("partition 0: nodes [0] have lost")


def test_what_is_known_fits_a_condition() -> None:
    """The API server would refuse the status of a zone that has lost thousands of partitions."""
    loss = loss_of(lost().world.view(), 0)
    assert loss is not None
    text = summary([loss] * 1000)
    assert text.endswith(f"and {1000 - PARTITIONS_TOLD_MAX} more")
    assert summary([]) == ""


def test_the_survivor_leads_with_a_new_epoch_after_what_is_lost_was_written() -> None:
    """Nobody would know what was lost; or a replica that comes back would not roll back."""
    case = lost()
    decision = case.decide()
    status = decision.status
    assert status.state == S.UNCLEAN_ELECTION
    assert status.context is not None
    assert (status.context.to_node, status.context.next_epoch) == (2, 5)
    found = status.recovery
    assert found is not None
    assert (found.kept_offset, found.log_end_offset, found.committed_offset) == (80, 90, 80)
    assert "below offset 80 are kept" in found.message
    after = route_of(decision)
    assert (after.leader, after.leader_epoch, after.isr, after.iss) == (2, 5, (2,), ())
    assert after.eligible == ()
    case = Case(S.UNCLEAN_ELECTION)
    case.world.routes[0] = after
    case.world.reported(0, 2, role=Role.FOLLOWER)
    assert case.decide().status.state == S.UNCLEAN_ELECTION
    assert repairs(case.world.view(), NOW) == ()
    del case.world.reports[0, 2]
    assert case.decide().status.state == S.SUCCEEDED


def test_an_authorized_takeover_ends_with_the_recovery() -> None:
    """Its candidate could come back, and lead with the epoch that it was promised."""
    case = lost()
    case.world.routes[0] = record(isr=(0, 1), next_leader=1, next_epoch=7)
    after = route_of(case.decide())
    assert (after.leader, after.leader_epoch, after.next_leader) == (2, 8, None)


def test_who_is_eligible_loses_nothing_and_leads_before_a_silent_member_is_waited_for() -> None:
    """A zone would stay without a leader, or lose rows, though somebody has all of them."""
    case = lost(lost_nodes=(0,))
    case.world = World(silent={0: 60.0})
    case.world.routes[0] = record(isr=(0,), eligible=(1, 2))
    decision = case.decide()
    assert decision.status.recovery is not None
    assert decision.status.recovery.message == "it has every acknowledged row"
    assert decision.status.recovery.kept_offset == decision.status.recovery.log_end_offset == 100
    after = route_of(decision)
    assert (after.leader, after.isr, after.eligible) == (1, (1,), (2,))
    case.world.routes[0] = record(isr=(0,), eligible=(1,))
    case.spec["target"] = 2
    assert "node 2 cannot lead the partition: [1] can" in refused(case)
    case.spec["unclean_election"]["lost_nodes"] = ()
    assert "nodes [0] do not answer" in refused(case)


def test_nothing_is_given_up_that_is_not_lost() -> None:
    """A healthy partition would be cut off by a typing error in its number."""
    case = lost()
    case.world = World()
    assert refused(case).startswith("not needed")
    assert "node 2 has rows" in refused(lost(mode="Empty"))
    case = lost(lost_nodes=(3,))
    assert "hold no replica" in refused(case)
    assert "answer, and have rows" in refused(lost(lost_nodes=(2,)))
    case = lost()
    case.spec["target"] = 1
    assert "node 1 cannot lead" in refused(case)


def test_a_node_that_may_come_back_is_waited_for_unless_it_is_named() -> None:
    """All acknowledged rows may be on it, and a person may only not know that it is down."""
    case = lost()
    del case.world.reports[0, 1]
    case.world.silent[1] = 60.0
    assert "nodes [1] do not answer, and may come back" in refused(case)
    case.spec["unclean_election"]["lost_nodes"] = (1,)
    assert route_of(case.decide()).leader == 2
    case = Case(S.UNCLEAN_ELECTION)
    case.world.silent[2] = 60.0
    assert "mode Empty" in refused(case)


@pytest.mark.parametrize("case", [lost(), Case(S.UNCLEAN_ELECTION)], ids=["begin", "recover"])
def test_nothing_is_decided_before_it_is_known_who_answers(case: Case) -> None:
    """A new coordinator, which has heard of nobody, would refuse, or choose a worse survivor."""
    case.world.silent[2] = 1.0
    decision = case.decide()
    assert decision.status.state in {S.SELECT_CANDIDATE, S.UNCLEAN_ELECTION}
    assert decision.actions == ()
    case.world.silent.clear()
    case.world.reports[0, 2] = None
    assert case.decide().actions == ()


def test_a_partition_without_any_rows_begins_again_when_that_is_asked_for() -> None:
    """An empty replica would lead by itself; or the partition be gone for ever."""
    case = lost()
    case.world.reports[0, 2] = LOST
    assert "mode Empty begins the partition again" in refused(case)
    case.spec["unclean_election"]["mode"] = "Empty"
    decision = case.decide()
    assert decision.status.recovery is not None
    assert decision.status.recovery.empty
    after = route_of(decision)
    assert (after.leader, after.isr) == (0, (0,))
    again = Case(S.UNCLEAN_ELECTION)
    again.spec, again.world = case.spec, case.world
    again.context["to_node"] = 0
    again.status["recovery"] = decision.status.recovery
    again.world.routes[0] = after
    begin = only(again.decide(), world.BeginEmpty)
    assert (begin.node, begin.state) == (0, after)
    assert repairs(again.world.view(), NOW) == (), "nobody else is made the leader meanwhile"


@pytest.mark.parametrize(
    ("node", "epoch", "reason"),
    [
        (7, 9, routes.RefusalReason.NOT_A_REPLICA),
        (1, 4, routes.RefusalReason.STALE_LEADER_EPOCH),
    ],
)
def test_the_record_refuses_what_would_break_it(
    node: int, epoch: int, reason: routes.RefusalReason
) -> None:
    """A recovery that was decided long ago would depose a leader of today."""
    answer = route_leaders.elect_uncleanly(record(), node, epoch, lost=())
    assert isinstance(answer, routes.Refusal)
    assert answer.reason is reason
