"""Who leads a partition: takeovers that are planned, carried out or rolled back, and elections.

A planned takeover has an epoch of its own: `next_epoch` is above `leader_epoch`, and every later
leader's epoch is above `next_epoch`, so that a takeover the data plane carried out on its own can
be told from what the coordinator decided meanwhile. As all changes of a record (`routes`), each
returns the next record, the same one when there is nothing to change, or a `Refusal`.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from rezone.domain.routing.routes import (
    Answer,
    Refusal,
    RefusalReason,
    first_refusal,
    highest_epoch,
    next_record,
    with_isr,
    without,
)
from rezone.wire.messages import LeaderAndIsr, NodeId


def authorize_takeover(
    record: LeaderAndIsr, candidate: NodeId, coordinator_epoch: int | None = None
) -> Answer:
    """Return the record in which the leader may hand over to `candidate` with `next_epoch` (RM-01).

    Only an in-sync replica has every acknowledged row, so no other may be authorized.
    """
    if candidate == record.next_leader:
        return record
    checks = (
        (
            record.next_leader is not None,
            RefusalReason.TAKEOVER_AUTHORIZED,
            f"node {record.next_leader} may take over just now: roll that back first",
        ),
        (
            candidate == record.leader,
            RefusalReason.IS_LEADER,
            f"node {candidate} leads already",
        ),
        (
            candidate not in record.replicas,
            RefusalReason.NOT_A_REPLICA,
            f"node {candidate} is not a replica",
        ),
        (
            candidate not in record.isr,
            RefusalReason.NOT_IN_SYNC,
            f"node {candidate} is not in sync",
        ),
        (record.sealing, RefusalReason.SEALING, "the leader may be sealing its log just now"),
    )
    refusal = first_refusal(checks)
    if refusal is not None:
        return refusal
    return next_record(
        record, coordinator_epoch, next_leader=candidate, next_epoch=record.leader_epoch + 1
    )


def complete_takeover(
    record: LeaderAndIsr, new_leader: NodeId, new_epoch: int, coordinator_epoch: int | None = None
) -> Answer:
    """Return the record in which the authorized candidate leads, as a data node says (RM-06, B-09).

    The old leader stays in sync: it has sent its last row and written none since (B-13). A leader
    of a takeover that was rolled back or failed over has too low an epoch and is refused.
    """
    if (record.leader, record.leader_epoch) == (new_leader, new_epoch):
        return record
    if new_epoch <= record.leader_epoch:
        return Refusal(
            RefusalReason.STALE_LEADER_EPOCH,
            f"epoch {new_epoch} of node {new_leader} is over, it is {record.leader_epoch}",
        )
    if (record.next_leader, record.next_epoch) != (new_leader, new_epoch):
        return Refusal(
            RefusalReason.NOT_AUTHORIZED,
            f"node {new_leader} was not authorized to lead with epoch {new_epoch}",
        )
    return _led_by(record, new_leader, new_epoch, coordinator_epoch)


def roll_back_takeover(record: LeaderAndIsr, coordinator_epoch: int | None = None) -> Answer:
    """Return the record in which the old leader leads again, above `next_epoch` (RM-08).

    The higher epoch fences the candidate first: should it lead already, it is refused from now
    on. Without an authorized takeover there is nothing to roll back.
    """
    if record.next_leader is None:
        return record
    return _led_by(record, record.leader, highest_epoch(record) + 1, coordinator_epoch)


def fail_over(
    record: LeaderAndIsr,
    alive: Collection[NodeId],
    coordinator_epoch: int | None = None,
    *,
    minimum: int,
    avoid: Collection[NodeId] = (),
    barred: Collection[NodeId] = (),
    candidates: Mapping[NodeId, Collection[NodeId]] = MappingProxyType({}),
) -> LeaderAndIsr | None:
    """Return the record led by a living in-sync replica, None when there is none (B-06).

    Hot standbys of `iss` come first, then the rest of `isr`, each in their order and a takeover's
    candidate before its peers; all of them before nodes to `avoid`, which lead only where nobody
    else can. Those `barred` never lead; they stay in `isr`. `candidates`, each with those that hear
    it, come before all others where there are any. Replicas that are not alive, or do not hear a
    candidate, leave `isr`, else the new leader's writes would wait for them; they stay in
    `replicas`. The epoch is above `next_epoch`: the candidate may lead with that. The same record
    comes back while its leader is alive. A fenced coordinator gets None too.
    """
    if record.leader in alive:
        return record
    living = [node for node in record.isr if node in alive]
    order = [node for node in (*record.iss, *living) if node in living and node not in barred]
    if not order:
        return None
    hot = set(record.iss)
    leader = min(
        order,
        key=lambda node: (
            node not in candidates,
            node in avoid,
            node not in hot,
            node != record.next_leader,
            order.index(node),
        ),
    )
    living = [node for node in living if node in candidates.get(leader, living)]
    shrunk = msgspec.structs.replace(
        record,
        iss=tuple(node for node in record.iss if node in living),
        **with_isr(record, tuple(living), minimum),
    )
    answer = _led_by(shrunk, leader, highest_epoch(record) + 1, coordinator_epoch)
    return answer if isinstance(answer, LeaderAndIsr) else None


def elect_eligible(
    record: LeaderAndIsr,
    alive: Collection[NodeId],
    lost: Collection[NodeId],
    coordinator_epoch: int | None = None,
    *,
    barred: Collection[NodeId] = (),
) -> Answer:
    """Return the record led by a living eligible replica, the only one in sync then.

    The same record comes back when there is none, or when a member of `isr` has not `lost` its
    data: that one comes first, and as a leader alone it may answer reads for as long as it runs.
    """
    candidates = [n for n in record.eligible if n in alive and n not in lost and n not in barred]
    if not candidates or not set(record.isr) <= set(lost):
        return record
    candidate = candidates[0]
    alone = msgspec.structs.replace(
        record, isr=(candidate,), iss=(), eligible=without(record.eligible, (candidate, *lost))
    )
    return _led_by(alone, candidate, highest_epoch(record) + 1, coordinator_epoch)


def elect_uncleanly(
    record: LeaderAndIsr,
    node: NodeId,
    leader_epoch: int,
    coordinator_epoch: int | None = None,
    *,
    lost: Collection[NodeId],
) -> Answer:
    """Return the record led by a replica that may lack acknowledged rows, as a person asked.

    It is the only one in sync. If it was eligible, so are the others that are not `lost`: all
    of them have every acknowledged row; else nobody has. Refused for a partition that others may
    serve: who lacks the seal would serve the same range (docs/decisions/0120).
    """
    if record.sealed:
        return Refusal(RefusalReason.SEALED, "new partitions serve its range, with all its rows")
    if record.sealing:
        return Refusal(
            RefusalReason.SEALING,
            "its log may be sealed: wait until the re-sharding has revoked that",
        )
    if node not in record.replicas:
        return Refusal(RefusalReason.NOT_A_REPLICA, f"node {node} is not a replica")
    if leader_epoch <= highest_epoch(record):
        return Refusal(
            RefusalReason.STALE_LEADER_EPOCH,
            f"epoch {leader_epoch} is over, it is {highest_epoch(record)}",
        )
    others = record.eligible if node in record.eligible else ()
    alone = msgspec.structs.replace(
        record, isr=(node,), iss=(), eligible=without(others, (node, *lost))
    )
    return _led_by(alone, node, leader_epoch, coordinator_epoch)


def _led_by(
    record: LeaderAndIsr, leader: NodeId, leader_epoch: int, coordinator_epoch: int | None
) -> Answer:
    """Return the record with this leader, who stands by no longer, and no authorized takeover."""
    hot = record.hot_standby_replica
    return next_record(
        record,
        coordinator_epoch,
        leader=leader,
        leader_epoch=leader_epoch,
        iss=without(record.iss, (leader,)),
        hot_standby_replica=None if hot == leader else hot,
        next_leader=None,
        next_epoch=None,
    )
