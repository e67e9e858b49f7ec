"""What data nodes know better than objects that have gone back in time."""

from __future__ import annotations

import functools

import msgspec
import pytest

from rezone.domain.assignment import assignments, outdated
from rezone.domain.model.world import RouteChange
from rezone.domain.routing.route_records import RouteRecords
from rezone.resources.zone_status import Assignment, Assignments, CancelIntent
from rezone.wire.layouts import Layout, id_of
from rezone.wire.messages import LeaderAndIsr, ReplicaReport, Role, SealState, ZoneConfig

pytestmark = pytest.mark.proves("NW-06")


def record(leader: int, epoch: int, partition_epoch: int, **more: object) -> LeaderAndIsr:
    """Return a record of the replicas 0, 1 and 2."""
    fields = {"isr": (0, 1, 2), "replicas": (0, 1, 2), **more}
    return LeaderAndIsr(
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
        coordinator_epoch=1,
        **fields,  # type: ignore[arg-type]
    )


def report(
    epoch: int, partition_epoch: int, revision: int = 0, partition: int = 0
) -> ReplicaReport:
    """Return what a replica says that knows these epochs."""
    return ReplicaReport(
        partition=partition,
        role=Role.FOLLOWER,
        leader=0,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
        revision=revision,
    )


STORED = record(0, 3, 7)
LATER = record(1, 5, 9)
ROUTES = RouteRecords().with_next([STORED], 0)
KEYS = Assignments(stable=Assignment(revision=4, replicas="0,1,2"), change=4)


@pytest.mark.parametrize(
    ("known", "later"),
    [((3, 7), False), ((2, 9), False), ((3, 8), True), ((4, 1), True), ((5, 9), True)],
)
def test_a_replica_that_knows_a_later_record_is_told_from_one_that_lags(
    known: tuple[int, int], later: bool
) -> None:
    """A zone would be taken for restored while a record travels, or never."""
    assert outdated.is_later(report(*known), STORED) is later


def test_a_leader_that_was_authorized_to_take_over_is_nothing_new() -> None:
    """Each leader transfer would stop the zone's passes."""
    authorized = record(0, 3, 7, next_leader=1, next_epoch=4)
    assert not outdated.is_later(report(4, 7), authorized)
    assert outdated.is_later(report(5, 7), authorized)


def learn(told: LeaderAndIsr, replicas: outdated.Replicas) -> tuple[RouteChange, ...] | str:
    """Return what is learned of the one partition, in a zone with two in-sync replicas at least."""
    latest = outdated.latest_of(ROUTES, [0], {0: [STORED, told]})
    return outdated.learned(ROUTES, latest, replicas, minimum=2, coordinator_epoch=8)


def test_the_latest_record_is_taken_over_when_all_its_replicas_agree() -> None:
    """The operator would act on a leader that was replaced."""
    found = learn(LATER, {node: {0: report(5, 9)} for node in (0, 1, 2)})
    assert isinstance(found, tuple)
    (change,) = found
    assert (change.expected_epoch, change.learned) == (7, True)
    assert (change.state.leader, change.state.leader_epoch, change.state.isr) == (1, 5, (0, 1, 2))
    assert (change.state.partition_epoch, change.state.coordinator_epoch) == (10, 8)


@pytest.mark.parametrize(
    ("replicas", "why"),
    [
        ({1: {0: report(5, 9)}}, "waits for data nodes [0, 2]"),
        ({1: {0: report(5, 9)}, 2: {}}, "waits for data nodes [0]"),
        ({n: {0: report(6, 1)} for n in (0, 1, 2)}, "a later record is known"),
    ],
)
def test_nothing_is_taken_over_that_may_not_be_the_latest(
    replicas: outdated.Replicas, why: str
) -> None:
    """A leader that only silent data nodes know of would get a second one of its epoch."""
    found = learn(LATER, replicas)
    assert isinstance(found, str)
    assert why in found


def test_a_leader_that_answers_vouches_for_its_record() -> None:
    """A zone would wait for ever for a data node whose volume the backup does not know."""
    found = learn(LATER, {0: {0: report(5, 9)}, 1: {0: report(5, 9)}})
    assert isinstance(found, tuple)
    assert (found[0].state.leader, found[0].state.isr) == (1, (0, 1, 2))


def test_without_its_leader_only_the_longest_log_counts() -> None:
    """A replica would lead that its leader had dropped from the set, and told nobody else."""
    behind = msgspec.structs.replace(report(5, 9), last_epoch=5, durable_offset=6)
    ahead = msgspec.structs.replace(behind, durable_offset=7)
    found = learn(LATER, {0: {0: behind}, 2: {0: ahead}})
    assert isinstance(found, tuple)
    assert (found[0].state.leader, found[0].state.isr) == (1, (1, 2))


def test_a_leader_that_has_lost_its_rows_vouches_for_nothing() -> None:
    """What it had been told went with its disk: it may have made the set smaller."""
    empty = msgspec.structs.replace(report(5, 9), needs_snapshot=True)
    behind = msgspec.structs.replace(report(5, 9), last_epoch=5, durable_offset=6)
    ahead = msgspec.structs.replace(behind, durable_offset=7)
    found = learn(LATER, {0: {0: behind}, 1: {0: empty}, 2: {0: ahead}})
    assert isinstance(found, tuple)
    assert found[0].state.isr == (1, 2)


def test_nobody_leads_by_itself_when_too_many_came_back_empty() -> None:
    """Rows that only they had would be given up without a word."""
    found = learn(LATER, {0: {}, 1: {0: report(5, 9)}, 2: {}})
    assert isinstance(found, tuple)
    state = found[0].state
    assert (state.leader, state.isr, state.replicas) == (0, (0, 2), (0, 1, 2))
    assert state.leader_epoch > LATER.leader_epoch, "the one that led would go on"


def test_revisions_are_raised_above_what_replicas_know_once() -> None:
    """Calls would be refused as StaleRevision for ever, or the offset would grow with each pass."""
    replicas = {0: {0: report(3, 7, revision=9)}}
    raised = outdated.with_revision(KEYS, replicas)
    assert assignments.acting_revision(raised) > 9
    assert outdated.with_revision(raised, replicas) == raised
    assert outdated.with_revision(KEYS, {0: {0: report(3, 7, revision=4)}}) == KEYS


def test_a_layout_that_no_object_names_is_told() -> None:
    """Its replicas would be stopped as left over, and with them all rows would go."""
    replicas = {0: {id_of(1, 0): report(1, 2, partition=id_of(1, 0))}}
    assert outdated.unknown_layout(KEYS, ROUTES, replicas) == 1
    used = KEYS.model_copy(update={"last_layout_version": 1})
    assert outdated.unknown_layout(used, ROUTES, replicas) is None


OLD_CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=1)
TO_NEXT = ZoneConfig(zone="z", zone_uid="u", partitions=1, next_partitions=2)
NEXT_CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, generation=1)


def leads(seal: SealState, epoch: int = 3) -> ReplicaReport:
    """Return what the leader of the one old partition says."""
    return msgspec.structs.replace(report(epoch, 7), role=Role.LEADER, seal=seal)


@pytest.mark.parametrize(
    ("configs", "reports", "cancelled"),
    [
        ([OLD_CONFIG, OLD_CONFIG], [leads(SealState.NONE), report(3, 7)], True),
        ([OLD_CONFIG, TO_NEXT], [leads(SealState.NONE), report(3, 7)], False),
        ([OLD_CONFIG, NEXT_CONFIG], [leads(SealState.NONE), report(3, 7)], False),
        ([OLD_CONFIG], [leads(SealState.NONE), report(3, 7)], False),
        ([OLD_CONFIG, OLD_CONFIG], [leads(SealState.UNKNOWN), report(3, 7)], False),
        ([OLD_CONFIG, OLD_CONFIG], [leads(SealState.SEALED), report(3, 7)], False),
        ([OLD_CONFIG, OLD_CONFIG], [leads(SealState.NONE), report(4, 1)], False),
    ],
    ids=["told", "one was not", "serves", "one is silent", "may seal", "has sealed", "led again"],
)
def test_a_layout_was_cancelled_when_all_data_nodes_say_so(
    configs: list[ZoneConfig], reports: list[ReplicaReport], cancelled: bool
) -> None:
    """The zone would wait for its end for ever, or rows that it has taken be deleted."""
    replicas = {node: {0: each} for node, each in enumerate(reports)}
    replicas[1][id_of(1, 0)] = report(1, 2, partition=id_of(1, 0))
    assert outdated.unknown_layout(KEYS, ROUTES, replicas) == 1
    assert outdated.is_cancelled(1, configs, ROUTES, replicas) is cancelled


def test_a_pending_layout_without_records_is_unknown_once_data_nodes_have_it() -> None:
    """Its records would be made again, with epochs that were used; an empty replica could lead."""
    pending = Assignment(revision=5, replicas="0,1,2;1,2,0", layout_version=1)
    keys = KEYS.model_copy(update={"pending": pending, "change": 5, "last_layout_version": 1})
    held = {0: {id_of(1, 0): report(1, 2, partition=id_of(1, 0))}}
    assert outdated.unknown_layout(keys, ROUTES, {0: {0: report(3, 7)}}) is None
    assert outdated.unknown_layout(keys, ROUTES, held) == 1
    cancel = CancelIntent(revision=5, old="", new="")
    cancelled = keys.model_copy(update={"cancel": cancel})
    assert outdated.unknown_layout(cancelled, ROUTES, held) is None
    made = ROUTES.with_next([STORED, STORED], 1)
    assert outdated.unknown_layout(keys, made, held) is None


def test_a_re_sharding_in_the_middle_is_gone_on_with() -> None:
    """New partitions have taken rows already, and the zone would stand still for good."""
    told: outdated.Told = {0: [STORED]}
    sealed: outdated.Told = {0: [msgspec.structs.replace(STORED, sealed=True)]}
    learn_it = functools.partial(outdated.layout_to_learn, routes=ROUTES)
    both = [OLD_CONFIG, TO_NEXT]
    assert learn_it(KEYS, 1, both, told=told) == (Layout(1, 2), False)
    assert learn_it(KEYS, 1, both, told=sealed) == (Layout(1, 2), True)
    assert "no object names" in learn_it(KEYS, 2, both, told=told)
    other = msgspec.structs.replace(TO_NEXT, partitions=5)
    assert "no object names" in learn_it(KEYS, 1, [other], told=told)
    pending = KEYS.model_copy(update={"pending": Assignment(revision=5, replicas="0,1,2")})
    assert "under way" in learn_it(pending, 1, both, told=told)
    replicas = {0: {0: report(3, 7, revision=9)}}
    keys = outdated.with_pending(KEYS, 1, [record(1, 5, 9)] * 2, replicas)
    assert keys.stable == KEYS.stable
    assert keys.pending == Assignment(revision=5, replicas="1,0,2;1,0,2", layout_version=1)
    assert assignments.violations(keys) == ()
    assert assignments.acting_revision(keys) > 9
    assert outdated.with_pending(keys, 1, [record(0, 5, 9)] * 2, {}) == keys
    # As of a backup that was made before its records were.
    assert learn_it(keys, 1, both, told=sealed) == (Layout(1, 2), False)
    assert "under way" in learn_it(keys, 1, [NEXT_CONFIG], told=told)


def test_a_new_partition_that_is_not_open_stays_so() -> None:
    """Data nodes that have not made it yet would wait for a copy of rows that nobody has."""
    layout = Layout(1, 1)
    told = {id_of(1, 0): [record(1, 1, 1)]}
    replicas: dict[int, dict[int, ReplicaReport]] = {0: {}, 1: {}, 2: {}}
    found = outdated.learned_layout(layout, told, replicas, minimum=2, coordinator_epoch=8)
    assert isinstance(found, tuple)
    assert (found[0].leader, found[0].isr, found[0].partition_epoch) == (1, (0, 1, 2), 1)
    del replicas[2]
    told = {id_of(1, 0): [record(1, 1, 1)]}
    found = outdated.learned_layout(layout, told, replicas, minimum=2, coordinator_epoch=8)
    assert isinstance(found, str)
    assert "waits for data nodes [2]" in found


def test_a_layout_that_no_object_names_is_learned() -> None:
    """A zone would wait for a backup that knows of its re-sharding, and there may be none."""
    layout = Layout(1, 2)
    told = {p: [record(1, 5, 9)] for p in layout.ids}
    replicas = {n: {p: report(5, 9, partition=p) for p in layout.ids} for n in (0, 1, 2)}
    found = outdated.learned_layout(layout, told, replicas, minimum=2, coordinator_epoch=8)
    assert isinstance(found, tuple)
    assert [(r.leader, r.partition_epoch, r.coordinator_epoch) for r in found] == [(1, 10, 8)] * 2
    keys = outdated.with_layout(KEYS, 1, found, replicas)
    assert keys.stable == Assignment(revision=5, replicas="1,0,2;1,0,2", layout_version=1)
    assert keys.last_layout_version == 1
    assert assignments.violations(keys) == ()


def test_a_layout_serves_when_the_one_before_has_cut_over() -> None:
    """Rows that no new partition has pulled yet would be gone."""
    during = ZoneConfig(zone="z", zone_uid="u", partitions=2, next_partitions=3)
    after = ZoneConfig(zone="z", zone_uid="u", partitions=3, generation=1)
    sealed = msgspec.structs.replace(STORED, sealed=True)
    part: outdated.Told = {0: [STORED, sealed], 1: [STORED]}
    assert outdated.served_layout(1, [during], part) is None
    assert outdated.served_layout(1, [during], {**part, 1: [sealed]}) == Layout(1, 3)
    assert outdated.served_layout(1, [during, after], part) == Layout(1, 3)
    assert outdated.served_layout(2, [after], part) is None


@pytest.mark.parametrize(
    ("nodes", "partitions", "why"),
    [((0, 1, 2), 1, "partition 1: nobody tells"), ((0,), 2, "partition 0 waits for data nodes")],
)
def test_a_layout_is_learned_as_a_whole(nodes: tuple[int, ...], partitions: int, why: str) -> None:
    """A part of the hashes would be nobody's, or be led by who lacks rows."""
    layout = Layout(1, 2)
    told = {p: [record(1, 5, 9)] for p in layout.ids[:partitions]}
    replicas = {n: {p: report(5, 9, partition=p) for p in layout.ids} for n in nodes}
    found = outdated.learned_layout(layout, told, replicas, minimum=2, coordinator_epoch=8)
    assert isinstance(found, str)
    assert why in found


def test_the_assignment_follows_from_the_records_unless_one_is_pending() -> None:
    """The next rebalance would begin from where the partitions were before the backup."""
    routes = ROUTES.changed({0: record(2, 5, 9, replicas=(1, 2, 3), isr=(1, 2, 3))})
    assert outdated.with_stable(KEYS, routes).stable == Assignment(revision=5, replicas="2,1,3")
    pending = KEYS.model_copy(update={"pending": Assignment(revision=5, replicas="0,1,3")})
    assert outdated.with_stable(pending, routes) == pending


def test_a_record_in_the_middle_of_a_move_makes_an_assignment_that_may_be() -> None:
    """Each pass would end with an error: no assignment has more than seven replicas."""
    many = tuple(range(9))
    routes = ROUTES.changed({0: record(8, 5, 9, replicas=many, isr=(5, 6, 7, 8))})
    stable = outdated.with_stable(KEYS, routes).stable
    assert stable is not None
    assert assignments.parse(stable.replicas) == ((8, 5, 6, 7, 0, 1, 2),)


def test_the_stable_layout_without_records_is_learned_as_it_is() -> None:
    """Somebody who deletes a zone's ConfigMaps would leave it without failover for ever.

    The keys are current: a rebalance that is pending goes on, and nothing is planned again.
    """
    replicas = {node: {0: report(5, 9)} for node in range(3)}
    none = RouteRecords()
    pending = Assignment(revision=5, replicas="1,2,3")
    keys = KEYS.model_copy(update={"pending": pending, "change": 5})
    assert outdated.unknown_layout(keys, none, replicas) == 0
    assert outdated.unknown_layout(keys, none, {}) is None, "nobody tells that it was ever placed"
    learned = outdated.layout_to_learn(keys, 0, [OLD_CONFIG], none, {0: [LATER]})
    assert learned == (Layout(0, 1), True)
    assert outdated.with_layout(keys, 0, [LATER], replicas) == keys


def test_a_stable_layout_is_not_learned_beside_a_later_one() -> None:
    """A layout's records cannot be made behind those of the next: a person is told what to do."""
    replicas = {0: {0: report(5, 9)}}
    later = RouteRecords().with_next([STORED, STORED], 1)
    keys = KEYS.model_copy(update={"last_layout_version": 1})
    assert outdated.unknown_layout(keys, later, replicas) == 0
    why = outdated.layout_to_learn(keys, 0, [OLD_CONFIG], later, {0: [LATER]})
    assert isinstance(why, str)
    assert "delete its next layout's records" in why
