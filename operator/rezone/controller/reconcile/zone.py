"""The reconcile loop of a DistributionZone.

A pass: observe (pods, Kubernetes nodes, reports, routes), decide the whole next status, write it
by compare-and-set, then act: pods for the data nodes in the status, route records that need
mending, the task for a pending assignment, news to the nodes, data nodes that are empty and no
longer wanted. Everything acted on stands in the status or in the route table first.

Concurrency: passes of all zones share the event loop, and one over the largest zone computes for
about half a second: between its parts the others have a turn. No part sees half of another's work,
since what it looks at is never changed but replaced.
"""

import asyncio
import dataclasses
import math
from datetime import datetime, timedelta

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.coordination.volumes import GROWING_SECONDS, SeenVolumes, grow_volumes
from rezone.controller.nodes.monitor import utc_now
from rezone.controller.observing.observe import Observed, build_view, node_views
from rezone.controller.reconcile.restored import catch_up
from rezone.controller.reconcile.rollouts import decide_rollout
from rezone.controller.reconcile.zone_admission import is_refused, refused_status, template_obstacle
from rezone.controller.reconcile.zone_mending import (
    ZoneMending,
    migrations_of,
    others_turn,
    unplaced_replicas,
)
from rezone.controller.reconcile.zone_pods import assigned_ids, bring_pods
from rezone.controller.reconcile.zone_repairs import REPAIR_SECONDS
from rezone.controller.reconcile.zone_tasks import ZoneTasks, task_name
from rezone.controller.work.keys import ObjectKey, ZoneKey
from rezone.domain.assignment import announcements, assignments, missing_replicas, retained_replicas
from rezone.domain.model.world import ZoneView
from rezone.domain.observed import hearing, maintenance
from rezone.domain.observed.rollout import RolloutDecision
from rezone.domain.observed.volumes import Growth
from rezone.domain.rebalance import repair_progress
from rezone.domain.rebalance.estimates import SAMPLE_SECONDS
from rezone.domain.rebalance.repair_progress import SeenRepairs
from rezone.domain.repair import handover
from rezone.domain.repair.repairs import lease_ends_in
from rezone.domain.resharding import overwrites
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.topology_text import Topology
from rezone.domain.zone.data_nodes import Presence, plan_data_nodes
from rezone.domain.zone.planning import ZonePlanning
from rezone.domain.zone.status import Obstacle, health_of, zone_conditions
from rezone.kube.api.errors import (
    ConflictWriteError,
)
from rezone.kube.nodes.data_node import selector_text
from rezone.kube.stored.routes import RouteStore
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import (
    Assignments,
    DataNodeState,
    DistributionZoneStatus,
)
from rezone.wire.messages import Fence

log = structlog.get_logger(__name__)

DATA_NODE_PORT = 7400
NEW_OBSTACLE_SECONDS = 0.5
"""Soon, because the status must tell of it; not at once, because its words may change each time."""
OBSTACLE_SECONDS = 5.0
REFUSED_SECONDS = 2.0
"""How soon repairs ask again for the machines' slots: who does not ask is not waited for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decided:
    """The next status, the time the next pass is due, and what to place when there is nothing."""

    status: DistributionZoneStatus
    place: Topology | None
    rollout: RolloutDecision
    wake_seconds: float


class ZoneReconciler:
    """Keeps one zone after the other as its spec wants it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._tasks = ZoneTasks(coordinator)

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Run one pass; returns after how many seconds the next is due at the latest."""
        zone_key = ZoneKey(key.namespace, key.name)
        zone = await self._c.store.find(DistributionZone, key.namespace, key.name)
        if zone is None or zone.metadata.deletion_timestamp is not None:
            # Everything the zone owns goes with it: the garbage collector follows the owner.
            self._c.zone_deleted(zone_key)
            return None
        if is_refused(zone, self._c.settings):
            return await self._refuse(key, zone)
        runtime = self._c.runtime(zone_key, zone.metadata.uid)
        store = runtime.route_store(self._c.kube, zone)
        observed = await self._observe(zone, runtime, store)
        again = await catch_up(self._c, key, zone, runtime, observed)
        if again is not None:
            return again
        return await self._pass(key, zone, runtime, store, observed)

    async def _refuse(self, key: ObjectKey, zone: DistributionZone) -> float | None:
        status = refused_status(zone, utc_now())
        self._c.metrics.note_zone(key, status.conditions)
        try:
            await self._c.write_status(key, zone, status)
        except ConflictWriteError:
            return 0.0
        return None

    async def _pass(
        self,
        key: ObjectKey,
        zone: DistributionZone,
        runtime: ZoneRuntime,
        store: RouteStore,
        observed: Observed,
    ) -> float:
        decided = await self._decide(zone, runtime, observed)
        self._c.metrics.note_zone(key, decided.status.conditions)
        try:
            written = await self._c.write_status(key, zone, decided.status)
        except ConflictWriteError:
            return 0.0
        self._c.announcer.announce(zone, announcements.of_zone(zone.status, decided.status))
        zone = written
        known, before = runtime.obstacle, runtime.volumes
        acted = await self._act(zone, runtime, store, observed, decided)
        if acted:
            return 0.0
        return min(
            REFUSED_SECONDS if runtime.copies_refused(zone.metadata.uid) else math.inf,
            decided.wake_seconds,
            _obstacle_in(known, runtime.obstacle),
            _volumes_in(before, runtime.volumes),
            _repairs_in(written.status, runtime.repairs),
        )

    # --- observe -----------------------------------------------------------------------------

    async def _observe(
        self,
        zone: DistributionZone,
        runtime: ZoneRuntime,
        store: RouteStore,
    ) -> Observed:
        status = zone.status or DistributionZoneStatus()
        # Side by side: a leader's move takes several passes, and each waits for these answers.
        pods, kube_nodes, tasks = await asyncio.gather(
            self._c.pods.observe_pods(zone), self._c.pods.nodes(), self._tasks.list(zone)
        )
        # A pod under deletion is still asked: it hands its leaders over, and answers meanwhile.
        addresses = {p.node_id: f"{p.ip}:{DATA_NODE_PORT}" for p in pods if p.ip}
        places = {p.node_id: p.node_name for p in pods}
        # A node that has never answered holds nothing; any other is missed while it has no pod.
        met = [n.id for n in status.data_nodes if n.state is not DataNodeState.STARTING]
        runtime.monitor.watch(addresses, expected=met)
        watched = runtime.monitor.nodes()
        runtime.invalidate_routes()
        presence, now = {}, utc_now()
        heard = {n for w in watched.values() if w.is_fresh(now) for n in w.hears}
        for node in status.data_nodes:
            seen = watched.get(node.id)
            presence[node.id] = Presence(
                pod=node.id in places,
                node_name=places.get(node.id, ""),
                address=addresses.get(node.id, ""),
                reachable=seen is not None and seen.reachable,
                unreachable_since=runtime.monitor.silent_since(node.id),
                heard=node.id in heard,
            )
        kept = status.assignments.retained
        return Observed(
            now=now,
            kube_nodes=dict(kube_nodes),
            pods=pods,
            presence=presence,
            tasks=tasks,
            template=await template_obstacle(self._c.pods, zone, pods),
            routes=await runtime.routes(store),
            migrations=await migrations_of(self._c, zone)
            if retained_replicas.any_over(kept, now)
            else None,
        )

    # --- decide ------------------------------------------------------------------------------

    async def _decide(
        self,
        zone: DistributionZone,
        runtime: ZoneRuntime,
        observed: Observed,
    ) -> Decided:
        status = self._with_data_nodes(zone, observed)
        await others_turn()
        planned = _plan(zone, runtime, observed, status)
        await others_turn()
        view = build_view(
            zone.model_copy(update={"status": planned.status}),
            runtime,
            routes=observed.routes,
            migrations=observed.migrations or (),
            spark=None,
            leader_lease_seconds=self._c.settings.leader_lease_seconds,
        )
        unplaced = await unplaced_replicas(self._c, zone, view, observed)
        planned.keep((*retained_replicas.still_retained(view, observed.now), *unplaced))
        planned.admit(view)
        rollout = decide_rollout(
            zone,
            planned.status,
            observed.pods,
            view,
            tasks=observed.tasks,
            template_hash=self._c.pods.template_of(zone),
            refused=observed.template is not None,
            now=observed.now,
        )
        await others_turn()
        wake = min(
            planned.wake_seconds,
            rollout.wake_seconds,
            self._c.settings.resync_seconds,
            lease_ends_in(view, observed.now),
            hearing.steady_in(view, observed.now),
            handover.wake_in(view),
            missing_replicas.wake_in(view),
            retained_replicas.ends_in(planned.status.assignments.retained, observed.now),
            maintenance.ends_in(planned.status.data_nodes, observed.now),
        )
        return Decided(
            status=_with_conditions(
                zone,
                planned,
                view,
                rollout,
                task=task_name(zone.metadata.name, observed.tasks, planned.status.assignments),
                obstacle=runtime.obstacle,
                repairs=runtime.repairs,
                volumes=runtime.volumes.growth if runtime.volumes is not None else None,
                told=maintenance.told(
                    planned.status.data_nodes,
                    zone.spec.data_nodes,
                    {k.name: k.maintenance for k in observed.kube_nodes.values()},
                    view,
                    observed.now,
                ),
                now=observed.now,
            ),
            place=planned.place,
            rollout=rollout,
            wake_seconds=wake,
        )

    def _with_data_nodes(
        self, zone: DistributionZone, observed: Observed
    ) -> DistributionZoneStatus:
        """Return the status with the data nodes as they are now, and with its first assignment."""
        status = zone.status or DistributionZoneStatus()
        keys = _with_first_stable(status.assignments, observed.routes, zone)
        nodes = plan_data_nodes(
            zone=zone.metadata.name,
            spec=zone.spec.data_nodes,
            current=status.data_nodes,
            next_node_id=status.next_node_id,
            kube_nodes=observed.kube_nodes,
            presence=observed.presence,
            assigned=assigned_ids(keys, observed.routes),
            lost_after=timedelta(seconds=self._c.settings.lost_after_seconds),
            now=observed.now,
        )
        return status.model_copy(
            update={
                "assignments": keys,
                "data_nodes": nodes.nodes,
                "next_node_id": nodes.next_node_id,
                "observed_generation": zone.metadata.generation,
                "replicas": len(nodes.nodes),
                "selector": selector_text(zone.metadata.name),
            },
        )

    # --- act ---------------------------------------------------------------------------------

    async def _act(
        self,
        zone: DistributionZone,
        runtime: ZoneRuntime,
        store: RouteStore,
        observed: Observed,
        decided: Decided,
    ) -> bool:
        """Carry out what the written status stands for; returns whether another pass is due now."""
        status = decided.status
        runtime.looked_at = True
        runtime.obstacle = await bring_pods(
            self._c.pods, zone, observed, status=decided.status, outdated=decided.rollout.delete
        )
        runtime.volumes = await grow_volumes(
            self._c.claims, zone, runtime.volumes, asyncio.get_running_loop().time()
        )
        if decided.rollout.even_out:
            await self._tasks.even_out(zone, decided.rollout.even_out)
        if decided.place is not None and not observed.routes:
            first = [routes.initial(replicas, self._c.epoch) for replicas in decided.place]
            await runtime.create_layout(store, first, 0)
            return True
        mending = ZoneMending(self._c, zone, runtime, store, observed)
        changed = await mending.run()
        runtime.obstacle = runtime.obstacle or mending.obstacle
        runtime.repairs = mending.repairs
        self._inform(zone, runtime, status)
        await runtime.notify()
        await self._tasks.ensure(zone, observed.tasks)
        return changed

    def _inform(
        self,
        zone: DistributionZone,
        runtime: ZoneRuntime,
        status: DistributionZoneStatus,
    ) -> None:
        if status.assignments.stable is None:
            return
        runtime.zone = zone
        runtime.peers = {node.id: node.address for node in status.data_nodes if node.address}
        runtime.fence = Fence(
            coordinator_epoch=self._c.epoch,
            revision=assignments.acting_revision(status.assignments),
        )


def _obstacle_in(before: Obstacle | None, after: Obstacle | None) -> float:
    """Return after how many seconds an obstacle is to be told of, or looked at again."""
    if after is None:
        return math.inf if before is None else 0.0
    return OBSTACLE_SECONDS if after == before else NEW_OBSTACLE_SECONDS


def _volumes_in(before: SeenVolumes | None, after: SeenVolumes | None) -> float:
    """Return after how many seconds the volumes' growth is to be told or looked at again."""
    old, new = (each.growth if each is not None else None for each in (before, after))
    if new != old:
        return NEW_OBSTACLE_SECONDS
    return math.inf if new is None else GROWING_SECONDS


def _repairs_in(status: DistributionZoneStatus | None, seen: SeenRepairs | None) -> float:
    """Return after how many seconds the zone's own copies are to be told or looked at again."""
    written = status.repair_progress if status is not None else None
    by_spark = seen is not None and seen.by_spark
    if by_spark or repair_progress.told(written, seen) != written:
        return REPAIR_SECONDS
    return math.inf if written is None else SAMPLE_SECONDS


def _with_first_stable(
    keys: Assignments,
    records: RouteRecords,
    zone: DistributionZone,
) -> Assignments:
    """Return the keys with `stable` as placed; the route table is written before it."""
    if keys.stable is not None or not records:
        return keys
    topology = tuple(record.replicas for record in records.values())
    return assignments.first(keys, topology, int(zone.metadata.resource_version))


def _plan(
    zone: DistributionZone, runtime: ZoneRuntime, observed: Observed, status: DistributionZoneStatus
) -> ZonePlanning:
    """Return what the zone is asked for: by its spec, its data nodes, or an overwrite's driver."""
    keys = status.assignments
    generation = keys.stable.layout_version if keys.stable is not None else 0
    return ZonePlanning(
        zone,
        status,
        leaders=tuple(record.leader for record in observed.routes.of(generation)),
        now=observed.now,
        avoided=runtime.copy_watch.avoided(observed.now),
        overwrite=_overwrite_asked_for(runtime, observed, status),
    ).run()


def _overwrite_asked_for(
    runtime: ZoneRuntime, observed: Observed, status: DistributionZoneStatus
) -> str:
    """Return the overwrite that is to be begun, empty for none."""
    seen = (runtime.monitor.get(node.id) for node in status.data_nodes)
    if not any(each and each.node_state and each.node_state.overwrite for each in seen):
        return ""  # as in nearly every pass: views of all data nodes are made after the planning
    nodes = node_views(status.data_nodes, runtime.monitor, observed.now)
    return overwrites.asked_for(nodes.values(), status.assignments)


def _with_conditions(
    zone: DistributionZone,
    planned: ZonePlanning,
    view: ZoneView,
    rollout: RolloutDecision,
    *,
    task: str,
    obstacle: Obstacle | None,
    repairs: SeenRepairs | None,
    volumes: Growth | None,
    told: maintenance.Told | None,
    now: datetime,
) -> DistributionZoneStatus:
    status = planned.status
    wanted = sum(n.state is not DataNodeState.LOST for n in status.data_nodes)
    health = health_of(view, replicas=zone.spec.replicas, wanted_nodes=wanted)
    return status.model_copy(
        update={
            "ready_data_nodes": health.ready_nodes,
            "partitions_ready": health.in_sync,
            "under_replicated": health.partitions - health.in_sync,
            "current_task": task,
            "rollout": rollout.status,
            "repair_progress": repair_progress.told(status.repair_progress, repairs),
            "conditions": zone_conditions(
                status.conditions,
                health,
                stalled=planned.stalled,
                obstacle=obstacle,
                volumes=volumes,
                maintenance=told,
                rebalancing=task,
                paused=zone.spec.rebalance.paused,
                hands_off=zone.spec.paused,
                rollout=rollout,
                generation=zone.metadata.generation,
                now=now,
            ),
        },
    )
