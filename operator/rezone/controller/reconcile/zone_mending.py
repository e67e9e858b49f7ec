"""What a zone's pass does for partitions that are not as they should be, beside all tasks.

Leaders of lost nodes are replaced, copies that are missing are made, replicas that have no place
are stopped, and leaders handed over where they stand badly. Each step reads the route table that
the one before has left; a pass does the first that changes it, and the next pass the rest.
"""

import asyncio
import dataclasses
from collections.abc import Sequence

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.effects.acts import Acts
from rezone.controller.nodes.monitor import utc_now
from rezone.controller.observing.observe import Observed, build_view, migration_view
from rezone.controller.reconcile.zone_repairs import ZoneRepairs
from rezone.controller.reconcile.zone_tasks import copies_now, moves_now
from rezone.domain.assignment import retained_replicas
from rezone.domain.assignment.missing_replicas import missing_replicas
from rezone.domain.assignment.standbys import standby_changes
from rezone.domain.model.world import RouteChange, ZoneView
from rezone.domain.observed.readiness import comparisons
from rezone.domain.rebalance.repair_progress import SeenRepairs, repair_progress
from rezone.domain.repair import handover
from rezone.domain.repair.repairs import missing_copies, refused_proposals, repairs, strays
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.zone.status import Obstacle
from rezone.kube.stored.routes import RouteStore
from rezone.resources.migration import RegionMigration
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import RetainedReplica


async def others_turn() -> None:
    """Let what else is due on the event loop run."""
    await asyncio.sleep(0)


async def migrations_of(
    coordinator: Coordinator, zone: DistributionZone
) -> tuple[RegionMigration, ...]:
    """Read a zone's migrations: only now and then, there may be thousands."""
    meta = zone.metadata
    fields = {"spec.zoneName": meta.name}
    return await coordinator.store.list_all(RegionMigration, meta.namespace, fields=fields)


async def unplaced_replicas(
    coordinator: Coordinator, zone: DistributionZone, view: ZoneView, observed: Observed
) -> tuple[RetainedReplica, ...]:
    """Return what no assignment has and nobody keeps, unless something is at work on it.

    The status that this goes into is written only if the zone is still the one that was read.
    """
    if any(map(moves_now, observed.tasks)) or not retained_replicas.unplaced(view, observed.now):
        return ()
    own = await migrations_of(coordinator, zone)
    migrations = tuple(migration_view(each, view.generation) for each in own)
    view = dataclasses.replace(view, migrations=migrations)
    return retained_replicas.unplaced(view, observed.now)


class ZoneMending:
    """The mending of one pass over one zone.

    `obstacle` is what its copies wait for, `repairs` how far they are.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        zone: DistributionZone,
        runtime: ZoneRuntime,
        store: RouteStore,
        observed: Observed,
    ) -> None:
        self._c = coordinator
        self._zone = zone
        self._runtime = runtime
        self._store = store
        self._observed = observed
        self.obstacle: Obstacle | None = None
        self.repairs = SeenRepairs(zone.status.repair_progress if zone.status is not None else None)

    async def run(self) -> bool:
        """Mend what can be; whether the route table has changed, and another pass is due now."""
        view = await self._view()
        await others_turn()
        if await self._change(self._repairs(view)):
            return True
        self._refuse(view)
        await self._compare(view)
        await others_turn()
        await self._copy(view)
        await others_turn()
        return await self._rearrange(view)

    async def _view(self) -> ZoneView:
        routes = await self._runtime.routes(self._store)
        return self._seen(self._zone, routes, self._observed.migrations or ())

    def _seen(
        self,
        zone: DistributionZone,
        routes: RouteRecords,
        migrations: Sequence[RegionMigration],
    ) -> ZoneView:
        return build_view(
            zone,
            self._runtime,
            routes=routes,
            migrations=migrations,
            spark=None,
            leader_lease_seconds=self._c.settings.leader_lease_seconds,
        )

    async def _change(self, changes: tuple[RouteChange, ...]) -> bool:
        if changes:
            await self._runtime.change_routes(self._store, changes)
        return bool(changes)

    def _repairs(self, view: ZoneView) -> tuple[RouteChange, ...]:
        changes = repairs(view, utc_now())
        if not changes and self._observed.migrations is not None:
            changes = retained_replicas.releases(view, self._observed.now)
        return changes

    def _refuse(self, view: ZoneView) -> None:
        """Answer the proposals that are refused; the pass does not wait for who is told."""
        if refused := refused_proposals(view):
            acts = Acts(self._c, self._zone, self._runtime, self._zone)
            self._runtime.background(acts.carry_out(refused))

    async def _compare(self, view: ZoneView) -> None:
        """Have copies compared, whoever made them; the pass does not wait for the outcome."""
        if self._runtime.fence is not None:
            acts = Acts(self._c, self._zone, self._runtime, self._zone)
            await acts.carry_out(comparisons(view))

    async def _copy(self, view: ZoneView) -> None:
        """Have replicas copied that no task and no migration copies."""
        own_copies = ZoneRepairs(self._c, self._zone, self._runtime)
        task_copies = any(map(copies_now, self._observed.tasks))
        missing = missing_copies(view, task_copies=task_copies)
        wanted = bool(missing) or own_copies.state is not None
        known = self.repairs.progress
        if self._runtime.fence is None or not (wanted or known is not None):
            return
        own = await migrations_of(self._c, self._zone)
        migrations = tuple(migration_view(each, view.generation) for each in own)
        view = dataclasses.replace(view, migrations=migrations)
        if wanted:
            self.obstacle = await own_copies.run(view, task_copies=task_copies)
        self.repairs = SeenRepairs(
            repair_progress(view, known, utc_now(), task_copies=task_copies),
            by_spark=bool(own_copies.state is not None and own_copies.state.application),
        )

    async def _rearrange(self, view: ZoneView) -> bool:
        """Stop replicas without a place, move leaders and standbys to better ones."""
        overdue = self._runtime.overdue_takeovers()
        wanted = strays(view) or handover.is_wanted(view) or standby_changes(view)
        if not (wanted or missing_replicas(view)):
            return False
        # Looked at together with the migrations that may be at work on them.
        own = await migrations_of(self._c, self._zone)
        migrations = tuple(migration_view(each, view.generation) for each in own)
        view = dataclasses.replace(view, migrations=migrations)
        avoid = self._observed.outdated
        handed = handover.handovers(view, utc_now(), overdue=overdue, avoid=avoid)
        acts = Acts(self._c, self._zone, self._runtime, self._zone)
        await acts.carry_out((*strays(view), *handed))
        if handed:
            return False
        return await self._change(await self._missing(view, own) or standby_changes(view))

    async def _missing(
        self, view: ZoneView, migrations: Sequence[RegionMigration]
    ) -> tuple[RouteChange, ...]:
        """Return the replicas to be made, by the assignment as it is stored now.

        A migration that ended since this pass has read its zone may have changed it.
        """
        if not missing_replicas(view):
            return ()
        meta = self._zone.metadata
        zone = await self._c.store.find(DistributionZone, meta.namespace, meta.name)
        if zone is None or zone.metadata.uid != meta.uid:
            return ()
        return missing_replicas(self._seen(zone, view.routes, migrations))
