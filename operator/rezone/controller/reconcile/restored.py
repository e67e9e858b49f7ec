"""A zone whose objects were put back to an earlier state is given what its data nodes know (NW-06).

Asked for in each pass before anything is decided: what follows from outdated objects would be
refused by data nodes, or delete what the zone lives on. The status is written before the routes:
while these are outdated, the next pass finds out the same again.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Iterable, Sequence

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.observing.observe import Observed
from rezone.controller.work.keys import ObjectKey
from rezone.domain.assignment import outdated
from rezone.domain.assignment.outdated import Replicas
from rezone.domain.model.world import RouteChange
from rezone.kube.api.errors import ConflictWriteError
from rezone.resources.conditions import ConditionType, Reason, condition_of, set_condition
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeState, DataNodeStatus, DistributionZoneStatus
from rezone.wire.errors import RezoneError
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId, RoutesRequest, RouteTable

log = structlog.get_logger(__name__)

WAY_OUT = "docs/operate/failures/restore.md says what to do"
MEETING_SECONDS = 0.1
"""Data nodes wake the zone when they answer; one that does not is silent after a while."""
OBSTACLE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """What data nodes know better: the status and the records to be written, or why not yet."""

    status: DistributionZoneStatus
    changes: tuple[RouteChange, ...] = ()
    layout: tuple[int, tuple[LeaderAndIsr, ...]] | None = None
    """A layout that the objects do not know: its generation and its records."""
    unfinished: bool = False
    """The layout before still serves a part of the rows."""
    obstacle: str = ""


async def catch_up(
    coordinator: Coordinator,
    key: ObjectKey,
    zone: DistributionZone,
    runtime: ZoneRuntime,
    observed: Observed,
) -> float | None:
    """Take over what data nodes know better; None when there is nothing, and the pass goes on.

    Else nothing else may be done in it, and the seconds are those until the next one.
    """
    if not runtime.has_met_data_nodes():
        return MEETING_SECONDS
    used = runtime.monitor.used_epoch(coordinator.epoch)
    if used is not None:
        coordinator.on_used_epoch(used)
        return coordinator.settings.resync_seconds
    learned = await learn(coordinator, zone, runtime, observed)
    if learned is None:
        return None
    status = learned.status
    if learned.obstacle:
        told = condition_of(
            ConditionType.STALLED,
            True,  # noqa: FBT003 - the condition's value
            Reason.OBJECTS_OUTDATED,
            learned.obstacle,
            generation=zone.metadata.generation,
            now=observed.now,
        )
        conditions = set_condition(status.conditions, told)
        status = status.model_copy(update={"conditions": conditions})
    if learned.layout is not None:
        # Before the keys: without these it is found out once more that the layout is unknown.
        await _bring_layout(coordinator, zone, runtime, learned)
    try:
        await coordinator.write_status(key, zone, status)
    except ConflictWriteError:
        return 0.0
    if learned.obstacle:
        # What is waited for may be a data node whose pod was forgotten, too.
        await coordinator.pods.ensure(zone, status.data_nodes, degraded=True, present=observed.pods)
    if learned.changes:
        store = runtime.route_store(coordinator.kube, zone)
        await runtime.change_routes(store, learned.changes)
    return OBSTACLE_SECONDS if learned.obstacle else 0.0


async def learn(
    coordinator: Coordinator, zone: DistributionZone, runtime: ZoneRuntime, observed: Observed
) -> Learned | None:
    """Return what to take over from the data nodes of a zone, None when its objects are current."""
    status = zone.status or DistributionZoneStatus()
    keys, replicas = status.assignments, runtime.monitor.replicas()
    generation = outdated.unknown_layout(keys, observed.routes, replicas)
    if generation is not None and keys.stable is not None:
        layout = await _learn_layout(coordinator, zone, runtime, observed, generation)
        if isinstance(layout, Learned):
            return layout
        lost = outdated.has_lost_records(keys, generation)
        which = "whose route records are gone" if lost else "which no object names"
        why = f"data nodes hold partitions of layout {generation}, {which}: {layout}"
        return Learned(status=status, obstacle=f"{why}; {WAY_OUT}")
    later = outdated.known_later(observed.routes, replicas)
    if not later:
        raised = outdated.with_revision(keys, replicas)
        if raised == keys:
            return None
        return Learned(status=status.model_copy(update={"assignments": raised}))
    tables = await _tables(coordinator, runtime, sorted(later), replicas)
    latest = outdated.latest_of(observed.routes, later, _records(tables))
    status = _with_known_nodes(zone, status, observed, latest.values())
    found = outdated.learned(
        observed.routes,
        latest,
        replicas,
        minimum=zone.spec.min_in_sync,
        coordinator_epoch=coordinator.epoch,
    )
    if isinstance(found, str):
        return Learned(status=status, obstacle=f"data nodes know later records: {found}; {WAY_OUT}")
    log.warning("records are learned from data nodes", partitions=len(found))
    routes = observed.routes.changed({each.partition: each.state for each in found})
    keys = outdated.with_stable(outdated.with_revision(keys, replicas), routes)
    return Learned(status=status.model_copy(update={"assignments": keys}), changes=found)


async def _learn_layout(
    coordinator: Coordinator,
    zone: DistributionZone,
    runtime: ZoneRuntime,
    observed: Observed,
    generation: int,
) -> Learned | str:
    """Return what to take over of a layout that no object names, or why that cannot be."""
    status = zone.status or DistributionZoneStatus()
    keys, replicas = status.assignments, runtime.monitor.replicas()
    tables = await _tables(coordinator, runtime, (), replicas)
    told, configs = _records(tables), [table.config for table in tables]
    if outdated.is_cancelled(generation, configs, observed.routes, replicas):
        if keys.pending is not None and keys.pending.layout_version == generation:
            return "the re-sharding to it was cancelled since: cancel its task, too"
        keys = keys.model_copy(update={"last_layout_version": generation})
        return Learned(status=status.model_copy(update={"assignments": keys}))
    found = outdated.layout_to_learn(keys, generation, configs, observed.routes, told)
    if isinstance(found, str):
        return found
    layout, served = found
    lost = outdated.has_lost_records(keys, generation)
    if zone.spec.partitions != layout.partitions and not lost:
        will = "are" if served else "will be"
        return f"set spec.partitions to {layout.partitions}, which is how many there {will}"
    records = outdated.learned_layout(
        layout,
        told,
        replicas,
        minimum=zone.spec.min_in_sync,
        coordinator_epoch=coordinator.epoch,
    )
    if isinstance(records, str):
        return records
    log.warning("a layout is learned", generation=generation, unfinished=not served)
    status = _with_known_nodes(zone, status, observed, records)
    take = outdated.with_layout if served else outdated.with_pending
    keys = take(keys, generation, records, replicas)
    status = status.model_copy(update={"assignments": keys})
    return Learned(status=status, layout=(generation, records), unfinished=not served)


async def _bring_layout(
    coordinator: Coordinator,
    zone: DistributionZone,
    runtime: ZoneRuntime,
    learned: Learned,
) -> None:
    """Write the records of a layout, and delete those of the layouts that are over."""
    if learned.layout is None:
        return
    generation, records = learned.layout
    store = runtime.route_store(coordinator.kube, zone)
    await runtime.create_layout(store, records, generation)
    if learned.unfinished:
        return
    for each in (await runtime.routes(store)).layouts:
        if each.generation < generation:
            await runtime.delete_layout(store, each.generation)


async def _tables(
    coordinator: Coordinator,
    runtime: ZoneRuntime,
    partitions: Sequence[PartitionId],
    replicas: Replicas,
) -> list[RouteTable]:
    """Return what data nodes tell of these partitions, or of all; silent ones tell nothing."""
    request = RoutesRequest(partitions=tuple(partitions))

    async def ask(node: NodeId) -> RouteTable | None:
        watched = runtime.monitor.get(node)
        if watched is None:
            return None
        call = functools.partial(
            watched.client.call,
            request,
            RouteTable,
            timeout_seconds=coordinator.settings.call_timeout_seconds,
        )
        try:
            return await asyncio.get_running_loop().run_in_executor(coordinator.executor, call)
        except RezoneError as error:
            log.warning("records not told", node=node, error=str(error))
            return None

    return [table for table in await asyncio.gather(*map(ask, replicas)) if table is not None]


def _records(tables: Iterable[RouteTable]) -> dict[PartitionId, list[LeaderAndIsr]]:
    """Return all records that are told."""
    told: dict[PartitionId, list[LeaderAndIsr]] = {}
    for table in tables:
        for each in table.partitions:
            told.setdefault(each.partition, []).append(each.state)
    return told


def _with_known_nodes(
    zone: DistributionZone,
    status: DistributionZoneStatus,
    observed: Observed,
    records: Iterable[LeaderAndIsr],
) -> DistributionZoneStatus:
    """Return the status with the data nodes that the records name and it has forgotten.

    They have been met, whatever the status says: if they stay silent, others lead in their place.
    """
    there = {node.id for node in status.data_nodes}
    named = {node for record in records for node in record.replicas} - there
    pods = {pod.node_id: pod for pod in observed.pods}
    forgotten = [
        DataNodeStatus(
            id=node,
            pod_name=f"{zone.metadata.name}-{node}",
            node_name=pods[node].node_name if node in pods else "",
            state=DataNodeState.ACTIVE,
        )
        for node in sorted(named)
    ]
    update = {
        "data_nodes": (*status.data_nodes, *forgotten),
        "next_node_id": max(status.next_node_id, *(node + 1 for node in named), 0),
    }
    return status.model_copy(update=update)
