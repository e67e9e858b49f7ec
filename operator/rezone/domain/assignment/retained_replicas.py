"""Retained replicas: old leaders that stay beside the assignment for failback (B-13).

A person's leader transfer to a node outside the assignment gives the new leader the old one's place
in `stable`. With `oldLeaderPolicy: Retain` the old leader stays an in-sync replica. The zone's
status names it, with the time when it is removed, in the same write that changed `stable`, so no
crash forgets it (docs/decisions/0170). At that time its record shrinks, and the replica is stopped
like every replica that no record names (`repairs.strays`).

A rebalance that moves the partition without that node ends the retention at once. So does a drain
or the loss of the node: nothing else would ever take the replica away from it.
"""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

from rezone.domain.model.changes import Step, change_of
from rezone.domain.model.world import RouteChange, ZoneView
from rezone.domain.routing import routes
from rezone.resources.migration import OldLeaderPolicy, RegionMigrationSpec
from rezone.resources.zone_status import RETAINED_MAX, RetainedReplica
from rezone.wire.messages import NodeId, PartitionId

LOOK_AGAIN_SECONDS = 5.0
"""How soon one whose time is over is looked at again while something is in the way."""

FULL = f"the zone keeps {RETAINED_MAX} old leaders already: shorten their time"
"""Why no more is kept, for people."""


def is_full(view: ZoneView) -> bool:
    """Return whether as many replicas are kept as there may be."""
    return len(view.retained) >= RETAINED_MAX


def retained_until(spec: RegionMigrationSpec, since: datetime) -> datetime | None:
    """Return until when a migration keeps what it leaves beside the assignment, None without end.

    One that removes the old leader keeps nothing.
    """
    if spec.old_leader_policy is OldLeaderPolicy.REMOVE:
        return since
    seconds = spec.retain_old_leader_seconds
    return None if seconds is None else since + timedelta(seconds=seconds)


def is_over(each: RetainedReplica, now: datetime) -> bool:
    """Return whether the time of what is kept is over."""
    return each.retain_until_time is not None and each.retain_until_time <= now


def any_over(kept: Iterable[RetainedReplica], now: datetime) -> bool:
    """Return whether the time of any is over: then the zone's migrations are to be looked at."""
    return any(is_over(each, now) for each in kept)


def ends_in(kept: Iterable[RetainedReplica], now: datetime) -> float:
    """Return after how many seconds to look at what is kept, infinity when it has no end."""
    ends = (each.retain_until_time for each in kept)
    left = [(end - now).total_seconds() for end in ends if end is not None]
    return min((LOOK_AGAIN_SECONDS if each <= 0 else each for each in left), default=math.inf)


def still_retained(view: ZoneView, now: datetime) -> tuple[RetainedReplica, ...]:
    """Return what is kept from now on, each with its end and why it outlasts that.

    No longer kept is who has a place in the assignment, and who is no replica any more.
    """
    kept = []
    for each in view.retained:
        assigned = view.assigned(each.partition)
        record = view.routes.get(each.partition)
        if assigned is None or record is None:
            continue  # its layout is over
        if each.node in assigned or each.node not in record.replicas:
            continue
        until = _end_of(view, each, now)
        ended = each.model_copy(update={"retain_until_time": until})
        why = _why_not_yet(view, ended) if is_over(ended, now) else ""
        kept.append(ended.model_copy(update={"waiting_for": why}))
    return tuple(kept)


def unplaced(view: ZoneView, now: datetime) -> tuple[RetainedReplica, ...]:
    """Return what records have beside the assignment although nobody keeps it: its time is over.

    A move that was deleted half-way, or that a rebalance overtook, leaves such a one. Nothing while
    a rebalance is pending, or for a partition that a migration moves: `view` has all migrations,
    read after its records, and no task is at work.
    """
    if view.pending is not None:
        return ()
    moving = {m.partition for m in view.migrations if not m.terminal}
    known = {(each.partition, each.node) for each in view.retained}
    found = [
        (partition, node)
        for partition, record in view.routes.items()
        if partition not in moving and (assigned := view.assigned(partition)) is not None
        for node in record.replicas
        if node not in assigned and (partition, node) not in known
    ]
    at_once = now.replace(microsecond=0)
    return tuple(
        RetainedReplica(
            partition=partition,
            node=node,
            migration="",
            retained_time=at_once,
            retain_until_time=at_once,
        )
        for partition, node in found[: max(0, RETAINED_MAX - len(view.retained))]
    )


def releases(view: ZoneView, now: datetime) -> tuple[RouteChange, ...]:
    """Return the records without those whose time is over, as far as nothing is in the way."""
    over = [
        each for each in still_retained(view, now) if is_over(each, now) and not each.waiting_for
    ]
    changes = (
        change_of(partition, view.routes[partition], view.coordinator_epoch, _without(nodes))
        for partition, nodes in _by_partition(over).items()
    )
    return tuple(change for change in changes if change is not None)


def _by_partition(kept: Iterable[RetainedReplica]) -> dict[PartitionId, tuple[NodeId, ...]]:
    found: dict[PartitionId, tuple[NodeId, ...]] = {}
    for each in kept:
        found[each.partition] = (*found.get(each.partition, ()), each.node)
    return found


def _without(nodes: tuple[NodeId, ...]) -> Step:
    return lambda record: routes.remove_replicas(record, nodes)


def _end_of(view: ZoneView, each: RetainedReplica, now: datetime) -> datetime | None:
    seen = view.nodes.get(each.node)
    going = seen is None or seen.draining or seen.lost
    target = view.target(each.partition)
    if not going and (not _moves(view, each.partition) or target is None or each.node in target):
        return each.retain_until_time
    at_once = now.replace(microsecond=0)
    return at_once if each.retain_until_time is None else min(each.retain_until_time, at_once)


def _moves(view: ZoneView, partition: PartitionId) -> bool:
    """Return whether a pending rebalance gives a partition other nodes."""
    target = view.target(partition)
    return target is not None and set(target) != set(view.assigned(partition) or ())


def _why_not_yet(view: ZoneView, each: RetainedReplica) -> str:
    """Return what keeps a replica longer than its time, "" when it may go."""
    record = view.routes[each.partition]
    moving = [m.name for m in view.migrations if m.partition == each.partition and not m.terminal]
    behind = [n for n in view.assigned(each.partition) or () if n not in record.isr]
    counts = each.node in (*record.isr, *record.eligible)
    reasons = (
        (view.paused, "the zone is paused: spec.rebalance.paused"),
        (view.hands_off, "the zone is paused: spec.paused"),
        (view.resharding, "the zone is re-sharded"),
        (_moves(view, each.partition), "a rebalance moves the partition"),
        (moving, f"migration {''.join(moving[:1])} moves the partition"),
        (record.leader == each.node, f"node {each.node} leads: move the leader first"),
        (record.next_leader is not None, f"a takeover by node {record.next_leader} is authorized"),
        # Taking a copy away now would leave fewer in sync than there were.
        (counts and behind, f"nodes {behind} are not in sync"),
    )
    return next((why for holds, why in reasons if holds), "")
