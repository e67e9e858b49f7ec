"""Who has a partition and who of them is in sync: how a LeaderAndIsr record changes.

Who leads is the subject of `route_leaders`, and what a re-sharding writes that of `route_seals`;
what they share stands here.

Each function takes a record and returns the next one, with `partition_epoch` one higher, for the
caller to write by compare-and-set on that epoch. When there is nothing to change the very same
record comes back, so that a repeat writes nothing (ZR-13). What must not happen is answered by a
`Refusal` with its reason, never by an exception: a refusal is an answer for the asker.

Every member of `isr` has each acknowledged row on disk. So has every `eligible` replica: it left
`isr` when that became, or while it was, smaller than the zone's `minInSyncReplicas` (`minimum` in
calls), and a leader commits nothing until its record has that many members and no `eligible` ones
(`replica.insync`). With the write that brings `isr` back to the minimum nobody is eligible any
more, and with the news of it rows may be committed again (docs/decisions/0080).

What always holds (`route_checks.violations`): the leader is in `isr`, `isr` is within `replicas`,
`iss` is within `isr`, nobody is in `isr` and eligible; and from one record to the next no epoch
falls (`route_checks.regressions`).

The hot standbys of a record are `hot_standby_replica` (the latest one asked to become hot) and
the members of `iss` (those that are in sync).
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from rezone.wire.messages import FIRST_PARTITION_EPOCH, IsrProposal, LeaderAndIsr, NodeId


class RefusalReason(enum.StrEnum):
    """Why a record does not change."""

    COORDINATOR_FENCED = "CoordinatorFenced"  # a newer coordinator has written or been heard of
    STALE_LEADER_EPOCH = "StaleLeaderEpoch"  # the asker's leadership is over
    STALE_PARTITION_EPOCH = "StalePartitionEpoch"  # the record has changed since the asker read it
    RECORD_BEHIND = "RecordBehind"  # the asker knows a newer record than this one: read again
    EMPTY_ISR = "EmptyIsr"  # no in-sync replica would be left
    NOT_A_REPLICA = "NotAReplica"  # a node that is not in replicas
    LEADER_NOT_IN_ISR = "LeaderNotInIsr"  # the leader would not be in sync with itself
    NOT_IN_SYNC = "NotInSync"  # the node is not in isr and may lack acknowledged rows
    NOT_A_HOT_STANDBY = "NotAHotStandby"  # iss is only for hot standbys
    IS_LEADER = "IsLeader"  # the leader cannot be this
    TAKEOVER_AUTHORIZED = "TakeoverAuthorized"  # a takeover may be happening just now
    NOT_AUTHORIZED = "NotAuthorized"  # no takeover to this node and epoch was authorized
    SEALING = "Sealing"  # the partition may be cutting over to new ones just now
    LEAVING = "Leaving"  # only nodes that are about to stop would be left
    SEALED = "Sealed"  # the partition has cut over: others serve its range


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A change that must not be made, and why."""

    reason: RefusalReason
    message: str


Answer = LeaderAndIsr | Refusal


def initial(replicas: tuple[NodeId, ...], coordinator_epoch: int) -> LeaderAndIsr:
    """Return the first record of a new, empty partition: all replicas in sync, the first leads.

    All of them are in sync because all are empty. Raises ValueError without replicas or with
    one named twice.
    """
    if not replicas or len(set(replicas)) != len(replicas):
        raise ValueError(f"a partition needs distinct replicas, not {list(replicas)}")
    return LeaderAndIsr(
        leader=replicas[0],
        leader_epoch=1,
        isr=replicas,
        coordinator_epoch=coordinator_epoch,
        partition_epoch=FIRST_PARTITION_EPOCH,
        replicas=replicas,
    )


def begin_again(
    record: LeaderAndIsr, replicas: tuple[NodeId, ...], coordinator_epoch: int
) -> Answer:
    """Return the first record of a partition that begins again, under a later leader epoch.

    Data nodes delete what they have of it when they take this record. Only for a partition that no
    client has ever been served by: its rows must be in another one.
    """
    if coordinator_epoch < record.coordinator_epoch:
        return Refusal(
            RefusalReason.COORDINATOR_FENCED, f"coordinator epoch {coordinator_epoch} is over"
        )
    first = initial(replicas, coordinator_epoch)
    return msgspec.structs.replace(first, leader_epoch=highest_epoch(record) + 1)


def adjust_isr(
    record: LeaderAndIsr, proposal: IsrProposal, coordinator_epoch: int, *, minimum: int
) -> Answer:
    """Return the record with the leader's proposed `isr` and `iss` (HS-04, HS-08).

    A proposal that already holds is answered as done. While a takeover is authorized its
    candidate cannot be dropped: it may lead at this moment; roll back first, which fences it. Nor
    can anybody join: a candidate that leads already knows the set of before, and would not wait
    for the new member.
    """
    refusal = _refuse_proposal(record, proposal, coordinator_epoch)
    if refusal is not None:
        return refusal
    isr, iss = _distinct(proposal.new_isr), _distinct(proposal.new_iss)
    if set(isr) == set(record.isr) and set(iss) == set(record.iss):
        return record
    if proposal.partition_epoch < record.partition_epoch:
        return Refusal(
            RefusalReason.STALE_PARTITION_EPOCH,
            f"the record has epoch {record.partition_epoch}, not {proposal.partition_epoch}",
        )
    refusal = _refuse_members(record, isr, iss)
    if refusal is not None:
        return refusal
    return next_record(record, coordinator_epoch, **with_isr(record, isr, minimum), iss=iss)


def confirm(record: LeaderAndIsr, coordinator_epoch: int | None = None) -> Answer:
    """Return the same record under a new epoch: the answer to a proposal that already holds.

    A leader counts the members of a proposal until it is answered (HS-05), also of one that
    takes an earlier one back.
    """
    return next_record(record, coordinator_epoch)


def _refuse_proposal(
    record: LeaderAndIsr, proposal: IsrProposal, coordinator_epoch: int
) -> Refusal | None:
    if max(proposal.coordinator_epoch, record.coordinator_epoch) > coordinator_epoch:
        return Refusal(
            RefusalReason.COORDINATOR_FENCED,
            f"coordinator epoch {coordinator_epoch} is over: the leader knows "
            f"{proposal.coordinator_epoch}, the record {record.coordinator_epoch}",
        )
    if proposal.leader_epoch < record.leader_epoch:
        return Refusal(
            RefusalReason.STALE_LEADER_EPOCH,
            f"leader epoch {proposal.leader_epoch} is over, it is {record.leader_epoch}",
        )
    # Above the record's epochs: this coordinator decides on an old copy of the record.
    if (
        proposal.leader_epoch > record.leader_epoch
        or proposal.partition_epoch > record.partition_epoch
    ):
        return Refusal(
            RefusalReason.RECORD_BEHIND,
            f"the proposal is of epochs ({proposal.leader_epoch}, {proposal.partition_epoch}), "
            f"the record only of ({record.leader_epoch}, {record.partition_epoch}): read it again",
        )
    return None


def _refuse_members(
    record: LeaderAndIsr, isr: tuple[NodeId, ...], iss: tuple[NodeId, ...]
) -> Refusal | None:
    strangers = sorted(set(isr) - set(record.replicas))
    lagging = sorted(set(iss) - set(isr))
    cold = sorted(set(iss) - hot_standbys(record) - {record.leader})
    candidate = record.next_leader
    checks = (
        (not isr, RefusalReason.EMPTY_ISR, "at least the leader must stay in sync"),
        (strangers, RefusalReason.NOT_A_REPLICA, f"nodes {strangers} are not replicas"),
        (
            record.leader not in isr,
            RefusalReason.LEADER_NOT_IN_ISR,
            f"leader {record.leader} is missing in {list(isr)}",
        ),
        (
            candidate is not None and candidate not in isr,
            RefusalReason.TAKEOVER_AUTHORIZED,
            f"node {candidate} may take over just now and cannot leave isr",
        ),
        (
            candidate is not None and not set(isr) <= set(record.isr),
            RefusalReason.TAKEOVER_AUTHORIZED,
            f"node {candidate} may take over just now and would not know who joins isr",
        ),
        (lagging, RefusalReason.NOT_IN_SYNC, f"nodes {lagging} of iss are not in isr"),
        (cold, RefusalReason.NOT_A_HOT_STANDBY, f"nodes {cold} are no hot standbys"),
    )
    return first_refusal(checks)


def first_refusal(checks: Iterable[tuple[object, RefusalReason, str]]) -> Refusal | None:
    """Return the refusal of the first check that finds something wrong."""
    return next((Refusal(reason, message) for wrong, reason, message in checks if wrong), None)


def hot_standbys(record: LeaderAndIsr) -> frozenset[NodeId]:
    """Return the nodes that were asked to be hot standbys, in sync or not."""
    latest = () if record.hot_standby_replica is None else (record.hot_standby_replica,)
    return frozenset((*record.iss, *latest))


def add_replicas(
    record: LeaderAndIsr, nodes: Iterable[NodeId], coordinator_epoch: int | None = None
) -> Answer:
    """Return the record with more replicas (HS-06); the leader says later when they are in sync."""
    added = tuple(node for node in _distinct(nodes) if node not in record.replicas)
    if not added:
        return record
    return next_record(record, coordinator_epoch, replicas=record.replicas + added)


def set_hot_standby(
    record: LeaderAndIsr, node: NodeId | None, coordinator_epoch: int | None = None
) -> Answer:
    """Return the record with `node` as the latest hot standby (HS-06); None ends all of them.

    Earlier ones that are in `iss` stay hot, so several are made one after the other. None is
    refused while a takeover is authorized.
    """
    if node is None:
        return drop_hot_standbys(record, hot_standbys(record), coordinator_epoch)
    if node == record.leader:
        return Refusal(RefusalReason.IS_LEADER, f"node {node} leads and cannot stand by")
    if node not in record.replicas:
        return Refusal(RefusalReason.NOT_A_REPLICA, f"node {node} is not a replica")
    if node == record.hot_standby_replica:
        return record
    return next_record(record, coordinator_epoch, hot_standby_replica=node)


def drop_hot_standbys(
    record: LeaderAndIsr, nodes: Collection[NodeId], coordinator_epoch: int | None = None
) -> Answer:
    """Return the record in which `nodes` are plain replicas; refused for a takeover's candidate."""
    if record.next_leader is not None and record.next_leader in nodes:
        return Refusal(
            RefusalReason.TAKEOVER_AUTHORIZED, f"node {record.next_leader} may take over just now"
        )
    if not hot_standbys(record) & set(nodes):
        return record
    hot = record.hot_standby_replica
    return next_record(
        record,
        coordinator_epoch,
        hot_standby_replica=None if hot in nodes else hot,
        iss=without(record.iss, nodes),
    )


def remove_replicas(
    record: LeaderAndIsr, nodes: Collection[NodeId], coordinator_epoch: int | None = None
) -> Answer:
    """Return the record without `nodes`; all its sets and the hot standby shrink with it.

    Refused for the leader, and for the candidate of an authorized takeover: it may lead already.
    """
    if record.leader in nodes:
        return Refusal(
            RefusalReason.IS_LEADER, f"node {record.leader} leads: move its leadership first"
        )
    if record.next_leader is not None and record.next_leader in nodes:
        return Refusal(
            RefusalReason.TAKEOVER_AUTHORIZED, f"node {record.next_leader} may take over just now"
        )
    if not set(record.replicas) & set(nodes):
        return record
    hot = record.hot_standby_replica
    return next_record(
        record,
        coordinator_epoch,
        replicas=without(record.replicas, nodes),
        isr=without(record.isr, nodes),
        iss=without(record.iss, nodes),
        eligible=without(record.eligible, nodes),
        hot_standby_replica=None if hot in nodes else hot,
    )


def drop_from_isr(
    record: LeaderAndIsr,
    nodes: Collection[NodeId],
    coordinator_epoch: int | None = None,
    *,
    minimum: int,
) -> Answer:
    """Return the record in which `nodes` are not in sync; they stay replicas.

    For nodes that are gone, with their data. Refused for the leader: it must be replaced; and for
    the candidate of an authorized takeover: roll that back first, which fences it.
    """
    refusal = _refuse_dropping(record, nodes)
    if refusal is not None:
        return refusal
    if not set(record.isr) & set(nodes):
        return record
    return next_record(
        record,
        coordinator_epoch,
        **with_isr(record, without(record.isr, nodes), minimum),
        iss=without(record.iss, nodes),
    )


def drop_lost(
    record: LeaderAndIsr, nodes: Collection[NodeId], coordinator_epoch: int | None = None
) -> Answer:
    """Return the record in which `nodes`, that have lost their data, are in no set but `replicas`.

    Refused for those that `drop_from_isr` is refused for.
    """
    refusal = _refuse_dropping(record, nodes)
    if refusal is not None:
        return refusal
    if not {*record.isr, *record.eligible} & set(nodes):
        return record
    return next_record(
        record,
        coordinator_epoch,
        isr=without(record.isr, nodes),
        iss=without(record.iss, nodes),
        eligible=without(record.eligible, nodes),
    )


def _refuse_dropping(record: LeaderAndIsr, nodes: Collection[NodeId]) -> Refusal | None:
    if record.leader in nodes:
        return Refusal(RefusalReason.IS_LEADER, f"node {record.leader} leads: replace it first")
    if record.next_leader is not None and record.next_leader in nodes:
        return Refusal(
            RefusalReason.TAKEOVER_AUTHORIZED, f"node {record.next_leader} may take over just now"
        )
    return None


def settle_eligible(
    record: LeaderAndIsr, minimum: int, coordinator_epoch: int | None = None
) -> Answer:
    """Return the record without eligible replicas if its set is large enough without them.

    For a zone whose `minInSyncReplicas` was lowered: its leader may commit again.
    """
    if not record.eligible or len(record.isr) < minimum:
        return record
    return next_record(record, coordinator_epoch, eligible=())


def with_isr(
    record: LeaderAndIsr, isr: tuple[NodeId, ...], minimum: int
) -> dict[str, tuple[NodeId, ...]]:
    """Return a new `isr`, and who is eligible with it: who leaves a set that is too small."""
    if len(isr) >= minimum:
        return {"isr": isr, "eligible": ()}
    return {"isr": isr, "eligible": without(_distinct((*record.eligible, *record.isr)), isr)}


def next_record(record: LeaderAndIsr, coordinator_epoch: int | None, **changes: Any) -> Answer:
    """Return the record with these changes under the next partition epoch; refused when fenced."""
    epoch = record.coordinator_epoch if coordinator_epoch is None else coordinator_epoch
    if epoch < record.coordinator_epoch:
        return Refusal(
            RefusalReason.COORDINATOR_FENCED,
            f"coordinator epoch {epoch} is over, the record has {record.coordinator_epoch}",
        )
    return msgspec.structs.replace(
        record,
        version=2,
        coordinator_epoch=epoch,
        partition_epoch=record.partition_epoch + 1,
        **changes,
    )


def highest_epoch(record: LeaderAndIsr) -> int:
    """Return the highest epoch that anybody may lead with by this record."""
    return max(record.leader_epoch, record.next_epoch or 0)


def without(nodes: tuple[NodeId, ...], gone: Collection[NodeId]) -> tuple[NodeId, ...]:
    """Return those of the nodes that are not gone, in their order."""
    return tuple(node for node in nodes if node not in gone)


def _distinct(nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    return tuple(dict.fromkeys(nodes))
