"""The conditions and counts of a zone, from one observation."""

import dataclasses
from datetime import datetime

from rezone.domain.model.world import ZoneView
from rezone.domain.observed import hearing
from rezone.domain.observed.clocks import clock_trouble
from rezone.domain.observed.disks import disk_trouble
from rezone.domain.observed.indexing import indexing
from rezone.domain.observed.maintenance import Told
from rezone.domain.observed.rollout import RolloutDecision
from rezone.domain.observed.volumes import Growth
from rezone.domain.repair.lost_quorum import Loss, loss_of, summary
from rezone.resources.conditions import (
    Condition,
    ConditionType,
    Reason,
    condition_of,
    drop_condition,
    set_condition,
)
from rezone.wire.messages import FIRST_PARTITION_EPOCH, DiskTrouble, Role

_WAY_OUT = (
    "bring a data node with all rows back, or give rows up: docs/operate/failures/lost-quorum.md"
)
DAMAGE_CHARACTERS = 512
_HANDS_OFF = (
    "spec.paused: the operator changes no leader and no replica by itself, not even when a leader "
    "is lost; RebalanceTasks and RegionMigrations that a person applies go on"
)
_REASON_OF = {
    DiskTrouble.FULL: Reason.DISK_FULL,
    DiskTrouble.FAILED: Reason.DISK_FAILED,
    DiskTrouble.SLOW: Reason.DISK_SLOW,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why objects of the zone cannot be made, or do nothing; `lasting` until somebody acts."""

    reason: Reason
    message: str
    lasting: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZoneHealth:
    """How many partitions are well: led by a node that answers, and with all replicas in sync.

    Counted are those that serve: while the zone is re-sharded not the ones that have cut over, nor
    new ones that nobody asks for anything yet.
    `lost_quorum` and `leaderless` tell of those that nobody can lead: for good, or for now.
    `unreached` says which data nodes only others hear, and `cut_off` that the operator hears few.
    `damaged` counts replicas that have found damage; `damage` tells of one of them. `disk` says
    what is wrong with data nodes' disks, and with which; `clocks` with their clocks. `indexing`
    says which indexes are being built.
    """

    partitions: int
    led: int
    in_sync: int
    ready_nodes: int
    wanted_nodes: int
    lost_quorum: str = ""
    leaderless: str = ""
    damaged: int = 0
    differing: int = 0
    difference: str = ""
    damage: str = ""
    unreached: str = ""
    cut_off: bool = False
    disk: tuple[DiskTrouble, str] | None = None
    clocks: str = ""
    indexing: str = ""


def health_of(view: ZoneView, *, replicas: int, wanted_nodes: int) -> ZoneHealth:
    """Count what works now.

    A leader counts when its own report says that it leads, and that it knows a second epoch: under
    the first one it takes no writes, for not all replicas may be open. One that the operator does
    not reach counts while its followers hear it.
    """
    led = in_sync = 0
    losses: list[Loss] = []
    serving = view.routes.serving
    for partition, record in view.routes.items():
        if partition not in serving:
            continue
        report = view.report(partition, record.leader)
        leads = report is not None and report.role is Role.LEADER
        heard = report is None and hearing.is_led(view, partition, record)
        known = report is not None and report.partition_epoch > FIRST_PARTITION_EPOCH
        if heard or (leads and known):
            led += 1
        elif not leads and (loss := loss_of(view, partition)) is not None:
            losses.append(loss)
        in_sync += len(record.isr) >= replicas
    differing = [
        f"data node {node}, {view.routes.name_of(partition)}"
        for partition, node, epoch in sorted(view.mismatched)
        if partition in view.routes
        and node in view.routes[partition].isr
        and epoch == view.routes[partition].leader_epoch
    ]
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
        unreached=hearing.unreached(view),
        cut_off=hearing.suspects_itself(view),
        damaged=len(damaged),
        damage=damaged[0][:DAMAGE_CHARACTERS] if damaged else "",
        differing=len(differing),
        difference=differing[0] if differing else "",
        disk=disk_trouble(view),
        clocks=clock_trouble(view),
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
    hands_off: bool = False,
    rollout: RolloutDecision,
    volumes: Growth | None,
    maintenance: Told | None = None,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return the zone's conditions; `rebalancing` names the task under way, or is empty."""
    if stalled is None and rollout.stuck:
        stalled = (Reason.PROGRESS_DEADLINE_EXCEEDED, rollout.stuck)
    if stalled is None and volumes is not None and volumes.refused:
        stalled = (Reason.VOLUME_EXPANSION_FAILED, volumes.text)
    if health.lost_quorum:
        stalled = (Reason.QUORUM_LOST, f"{health.lost_quorum}; {_WAY_OUT}")
    if obstacle is not None and obstacle.lasting:
        stalled = (obstacle.reason, obstacle.message)

    def of(kind: ConditionType, reason: Reason, message: str, *, value: bool = True) -> Condition:
        return condition_of(kind, value, reason, message, generation=generation, now=now)

    ready, reason, message = _ready(health, stalled, obstacle)
    result = set_condition(old, of(ConditionType.READY, reason, message, value=ready))
    updating, update_reason, update_message = _updating(rollout)
    advancing = updating and not rollout.held
    growing, grow_message = volumes is not None, volumes.text if volumes is not None else ""
    grow_reason = (
        Reason.VOLUME_EXPANSION_FAILED if volumes and volumes.refused else Reason.VOLUME_EXPANDING
    )
    working = (advancing or growing or not ready) and stalled is None
    if ready and updating:
        reason, message = update_reason, update_message
    elif ready:
        reason, message = grow_reason, grow_message
    result = _while_true(result, working, of(ConditionType.RECONCILING, reason, message))
    result = _while_true(
        result, updating, of(ConditionType.UPDATING, update_reason, update_message)
    )
    result = _while_true(
        result, growing, of(ConditionType.VOLUME_EXPANDING, grow_reason, grow_message)
    )
    result = _while_true(
        result,
        bool(health.indexing),
        of(ConditionType.INDEXING, Reason.INDEXING, health.indexing),
    )
    result = _while_true(result, hands_off, of(ConditionType.PAUSED, Reason.PAUSED, _HANDS_OFF))
    result = _told(result, maintenance, generation=generation, now=now)
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
    degraded, degraded_reason, degraded_message = _degraded(health)
    return _while_true(
        result, degraded, of(ConditionType.DEGRADED, degraded_reason, degraded_message)
    )


def _told(
    conditions: tuple[Condition, ...], told: Told | None, *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Set or drop what is said about maintenance: False while a node only waits for it."""
    kind = ConditionType.MAINTENANCE
    if told is None:
        return drop_condition(conditions, kind)
    condition = condition_of(
        kind, told.active, told.reason, told.message, generation=generation, now=now
    )
    return set_condition(conditions, condition)


def _degraded(health: ZoneHealth) -> tuple[bool, Reason, str]:
    if health.disk is not None:
        trouble, message = health.disk
        return True, _REASON_OF[trouble], message
    if health.damaged:
        message = f"{health.damaged} replicas are damaged and copied again: {health.damage}"
        return True, Reason.DATA_CORRUPTION, message
    if health.differing:
        message = (
            f"{health.differing} copies differ from their leaders' rows, and never lead: "
            f"{health.difference}"
        )
        return True, Reason.COPY_DIFFERS, message
    if health.clocks:
        return True, Reason.CLOCK_OFF, health.clocks
    if health.unreached and health.partitions:
        reason = Reason.OPERATOR_CUT_OFF if health.cut_off else Reason.NOT_REACHED
        return True, reason, health.unreached
    short = health.partitions - health.in_sync
    message = f"{short} of {health.partitions} partitions have fewer in-sync replicas than wanted"
    return short > 0, Reason.UNDER_REPLICATED, message


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
        if health.unreached:
            message = f"{message} that the operator knows of; {health.unreached}"
        if health.disk is not None:
            message = f"{message}; {health.disk[1]}"
        if health.clocks:
            message = f"{message}; {health.clocks}"
        if health.damaged:
            message = f"{message}; {health.damaged} replicas are damaged: {health.damage}"
        reason = Reason.QUORUM_LOST if health.lost_quorum else Reason.NO_LEADER
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
                f"{health.disk[1] if health.disk else 'reads and writes go on'}"
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
        reason = Reason.PROGRESS_DEADLINE_EXCEEDED
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
