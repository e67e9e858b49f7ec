"""What a zone's pass does for partitions that are not as they should be, beside all tasks.

Leaders of lost nodes are replaced, copies that are missing are made, replicas that have no place
are stopped, and leaders handed over where they stand badly. Each step reads the route table that
the one before has left; a pass does the first that changes it, and the next pass the rest.
"""

import asyncio
import dataclasses

from rezone.controller.acts import Acts
from rezone.controller.coordinator import Coordinator
from rezone.controller.monitor import utc_now
from rezone.controller.observe import Observed, build_view, migration_view
from rezone.controller.runtime import ZoneRuntime
from rezone.controller.transfers import Transfers
from rezone.controller.zone_tasks import copies_now
from rezone.domain import handover, kept_replicas
from rezone.domain.repairs import missing_copies, repairs, strays
from rezone.domain.standbys import standby_changes
from rezone.domain.world import RouteChange, ZoneView
from rezone.kube.routes import RouteStore
from rezone.resources.migration import RegionMigration
from rezone.resources.zone import DistributionZone


async def others_turn() -> None:
    """Let what else is due on the event loop run."""
    await asyncio.sleep(0)


async def migrations_of(
    coordinator: Coordinator, zone: DistributionZone
) -> tuple[RegionMigration, ...]:
    """Read a zone's migrations: only now and then, there may be thousands."""
    meta = zone.metadata
    fields = {"spec.zoneName": meta.name}
    return await coordinator.store.list(RegionMigration, meta.namespace, fields=fields)


class ZoneMending:
    """The mending of one pass over one zone."""

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

    async def run(self) -> bool:
        """Mend what can be; whether the route table has changed, and another pass is due now."""
        view = await self._view()
        await others_turn()
        if await self._change(self._repairs(view)):
            return True
        await others_turn()
        await self._copy(view)
        await others_turn()
        return await self._rearrange(view)

    async def _view(self) -> ZoneView:
        return build_view(
            self._zone,
            self._runtime,
            routes=await self._runtime.routes(self._store),
            migrations=self._observed.migrations or (),
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
            changes = kept_replicas.releases(view, self._observed.now)
        return changes

    async def _copy(self, view: ZoneView) -> None:
        """Have replicas copied that no task copies."""
        zone, fence = self._zone, self._runtime.fence
        copies = missing_copies(view, task_copies=any(map(copies_now, self._observed.tasks)))
        copies = copies[: zone.spec.rebalance.max_concurrent_migrations]
        if copies and fence is not None:
            await Transfers(self._c, zone, self._runtime).pull(copies, fence)

    async def _rearrange(self, view: ZoneView) -> bool:
        """Stop replicas without a place, move leaders and standbys to better ones."""
        overdue = self._runtime.overdue_takeovers()
        if not (strays(view) or handover.is_wanted(view) or standby_changes(view)):
            return False
        # Looked at together with the migrations that may be at work on them.
        own = await migrations_of(self._c, self._zone)
        migrations = tuple(migration_view(each, view.generation) for each in own)
        view = dataclasses.replace(view, migrations=migrations)
        avoid = self._observed.outdated
        handed = handover.handovers(view, utc_now(), overdue=overdue, avoid=avoid)
        acts = Acts(self._c, self._zone, self._runtime, self._zone)
        await acts.carry_out((*strays(view), *handed))
        return await self._change(() if handed else standby_changes(view))
