"""The conditions and counts of a zone, from one observation."""

import dataclasses
from datetime import datetime

from rezone.domain.indexing import indexing
from rezone.domain.lost_quorum import Loss, loss_of, summary
from rezone.domain.rollout import RolloutDecision
from rezone.domain.volumes import Growth
from rezone.domain.world import ZoneView
from rezone.resources.conditions import (
    Condition,
    ConditionType,
    Reason,
    condition_of,
    drop_condition,
    set_condition,
)
from rezone.wire.messages import FIRST_PARTITION_EPOCH, Role

_WAY_OUT = "bring a data node with all rows back, or give rows up: docs/operations/lost-quorum.md"
DAMAGE_CHARACTERS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why the data nodes' objects cannot be made; `lasting` until somebody does something."""

    reason: Reason
    message: str
    lasting: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZoneHealth:
    """How many partitions are well: led by a node that answers, and with all replicas in sync.

    Counted are those that serve: while the zone is re-sharded not the ones that have cut over, nor
    new ones that nobody asks for anything yet.
    `lost_quorum` and `leaderless` tell of those that nobody can lead: for good, or for now.
    `damaged` counts replicas that have found damage; `damage` tells of one of them. `indexing` says
    which indexes are being built.
    """

    partitions: int
    led: int
    in_sync: int
    ready_nodes: int
    wanted_nodes: int
    lost_quorum: str = ""
    leaderless: str = ""
    damaged: int = 0
    damage: str = ""
    indexing: str = ""


def health_of(view: ZoneView, *, replicas: int, wanted_nodes: int) -> ZoneHealth:
    """Count what works now.

    A leader counts when its own report says that it leads, and that it knows a second epoch: under
    the first one it takes no writes, for not all replicas may be open.
    """
    led = in_sync = 0
    losses: list[Loss] = []
    serving = view.routes.serving
    for partition, record in view.routes.items():
        if partition not in serving:
            continue
        report = view.report(partition, record.leader)
        leads = report is not None and report.role is Role.LEADER
        if report is not None and leads and report.partition_epoch > FIRST_PARTITION_EPOCH:
            led += 1
        elif not leads and (loss := loss_of(view, partition)) is not None:
            losses.append(loss)
        in_sync += len(record.isr) >= replicas
    damaged = [
        f"data node {node}, {view.routes.name_of(partition)}: {report.damage}"
        for node, seen in sorted(view.nodes.items())
        for partition, report in seen.replicas.items()
        if report.damage
    ]
    return ZoneHealth(
        partitions=len(serving),
        led=led,
        in_sync=in_sync,
        ready_nodes=sum(node.reachable for node in view.nodes.values()),
        wanted_nodes=wanted_nodes,
        lost_quorum=summary([loss for loss in losses if loss.given_up]),
        leaderless=summary([loss for loss in losses if not loss.given_up]),
        damaged=len(damaged),
        damage=damaged[0][:DAMAGE_CHARACTERS] if damaged else "",
        indexing=indexing(view),
    )


def zone_conditions(
    old: tuple[Condition, ...],
    health: ZoneHealth,
    *,
    stalled: tuple[Reason, str] | None,
    obstacle: Obstacle | None,
    rebalancing: str,
    paused: bool,
    rollout: RolloutDecision,
    volumes: Growth | None,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return the zone's conditions; `rebalancing` names the task under way, or is empty."""
    if stalled is None and rollout.stuck:
        stalled = (Reason.UPDATE_STUCK, rollout.stuck)
    if stalled is None and volumes is not None and volumes.refused:
        stalled = (Reason.GROWTH_REFUSED, volumes.text)
    if health.lost_quorum:
        stalled = (Reason.LOST_QUORUM, f"{health.lost_quorum}; {_WAY_OUT}")
    if obstacle is not None and obstacle.lasting:
        stalled = (obstacle.reason, obstacle.message)

    def of(kind: ConditionType, reason: Reason, message: str, *, value: bool = True) -> Condition:
        return condition_of(kind, value, reason, message, generation=generation, now=now)

    ready, reason, message = _ready(health, stalled, obstacle)
    result = set_condition(old, of(ConditionType.READY, reason, message, value=ready))
    updating, update_reason, update_message = _updating(rollout)
    advancing = updating and not rollout.held
    growing, grow_message = volumes is not None, volumes.text if volumes is not None else ""
    grow_reason = Reason.GROWTH_REFUSED if volumes and volumes.refused else Reason.GROWING
    working = (advancing or growing or not ready) and stalled is None
    if ready and updating:
        reason, message = update_reason, update_message
    elif ready:
        reason, message = grow_reason, grow_message
    result = _while_true(result, working, of(ConditionType.RECONCILING, reason, message))
    result = _while_true(
        result, updating, of(ConditionType.UPDATING, update_reason, update_message)
    )
    result = _while_true(result, growing, of(ConditionType.GROWING, grow_reason, grow_message))
    result = _while_true(
        result,
        bool(health.indexing),
        of(ConditionType.INDEXING, Reason.INDEXING, health.indexing),
    )
    stall_reason, stall_message = stalled or (Reason.AVAILABLE, "")
    result = _while_true(
        result,
        stalled is not None,
        of(ConditionType.STALLED, stall_reason, stall_message),
    )
    task = f"RebalanceTask {rebalancing} is at work" if rebalancing else ""
    if paused and rebalancing:
        task = f"{task}; no new moves start while spec.rebalance.paused is true"
    result = _while_true(
        result,
        bool(rebalancing),
        of(ConditionType.REBALANCING, Reason.PAUSED if paused else Reason.REBALANCING, task),
    )
    short = health.partitions - health.in_sync
    degraded_reason = Reason.UNDER_REPLICATED
    degraded = f"{short} of {health.partitions} partitions have fewer in-sync replicas than wanted"
    if health.damaged:
        degraded_reason = Reason.DAMAGED
        degraded = f"{health.damaged} replicas are damaged and copied anew: {health.damage}"
    return _while_true(
        result,
        short > 0 or health.damaged > 0,
        of(ConditionType.DEGRADED, degraded_reason, degraded),
    )


def _ready(
    health: ZoneHealth,
    stalled: tuple[Reason, str] | None,
    obstacle: Obstacle | None,
) -> tuple[bool, Reason, str]:
    if health.partitions == 0:
        if stalled is not None:
            return False, *stalled
        message = (
            f"{health.ready_nodes} of {health.wanted_nodes} data nodes answer; "
            "partitions are placed when enough do"
        )
        if obstacle is not None:
            return False, obstacle.reason, f"{message}; {obstacle.message}"
        return False, Reason.PODS_NOT_READY, message
    if health.led < health.partitions:
        lost = health.partitions - health.led
        message = f"{lost} of {health.partitions} partitions have no leader"
        if health.damaged:
            message = f"{message}; {health.damaged} replicas are damaged: {health.damage}"
        reason = Reason.LOST_QUORUM if health.lost_quorum else Reason.NO_LEADER
        return (
            False,
            reason,
            "; ".join(filter(None, (message, health.lost_quorum or health.leaderless))),
        )
    if health.in_sync < health.partitions:
        short = health.partitions - health.in_sync
        return (
            False,
            Reason.UNDER_REPLICATED,
            (
                f"{short} of {health.partitions} partitions are short of in-sync replicas; "
                "reads and writes go on"
            ),
        )
    return True, Reason.AVAILABLE, f"all {health.partitions} partitions are led and in sync"


def _updating(rollout: RolloutDecision) -> tuple[bool, Reason, str]:
    status = rollout.status
    if status is None:
        return False, Reason.AVAILABLE, ""
    reason = Reason.UPDATING
    if rollout.held:
        reason = Reason.PAUSED
    elif rollout.stuck:
        reason = Reason.UPDATE_STUCK
    total = status.updated + status.outdated
    text = f"{status.updated} of {total} data nodes run the current template; {status.waiting_for}"
    return True, reason, text


def _while_true(
    conditions: tuple[Condition, ...],
    holds: bool,  # noqa: FBT001 - the condition's value
    condition: Condition,
) -> tuple[Condition, ...]:
    if holds:
        return set_condition(conditions, condition)
    return drop_condition(conditions, condition.type)
