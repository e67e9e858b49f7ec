"""The reconcile loop of a RegionMigration: read, decide, write the status, act."""

from datetime import datetime

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.effects.acts import Acts
from rezone.controller.nodes.monitor import utc_now
from rezone.controller.observing.outside_machine import (
    MISSING_ZONE_SECONDS,
    seen_by_operator,
    without_zone,
)
from rezone.controller.observing.passes import begin_pass
from rezone.controller.work.keys import ObjectKey, ZoneKey
from rezone.domain.assignment import announcements
from rezone.domain.assignment.retained_replicas import retained_until
from rezone.domain.migration.decide import decide
from rezone.kube.api.errors import ConflictWriteError
from rezone.resources.migration import (
    TERMINAL_MIGRATION_STATES,
    RegionMigration,
    RegionMigrationStatus,
)
from rezone.resources.zone import DistributionZone

log = structlog.get_logger(__name__)


class MigrationReconciler:
    """Moves the state machine of one migration after the other."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Run one pass; returns after how many seconds the next is due, None at the end."""
        migration = await self._c.store.find(RegionMigration, key.namespace, key.name)
        if migration is None or migration.metadata.deletion_timestamp is not None:
            self._c.unfollow(key)
            self._c.metrics.forget(key)
            self._c.traces.forget(key)
            return None
        status = migration.status or RegionMigrationStatus()
        self._c.metrics.note_state(key, status.state)
        self._c.traces.note_transfer(key, migration, status)
        if status.state in TERMINAL_MIGRATION_STATES:
            self._c.unfollow(key)
            await self._after_the_end(key, migration, status)
            return None
        spec = migration.spec
        name = status.copies.application if status.copies is not None else ""
        spark = await self._c.spark.state(migration, name) if name else None
        seen = await begin_pass(self._c, key, spec.zone_name, migration=migration, spark=spark)
        if seen is None and name:
            await self._c.spark.delete(migration, name)
        if seen is None or not seen.is_open:
            waiting = without_zone(migration, status, utc_now(), found=seen is not None)
            await self._c.store.write_status(migration, waiting)
            return MISSING_ZONE_SECONDS
        decision = decide(
            migration.spec,
            migration.status,
            seen.view,
            utc_now(),
            migration.metadata.generation,
            name=key.name,
        )
        try:
            await self._c.write_status(key, migration, decision.status)
        except ConflictWriteError:
            return 0.0
        self._c.metrics.note_state(key, decision.status.state)
        self._c.traces.note_transfer(key, migration, decision.status)
        told = announcements.of_migration(migration.status, decision.status)
        self._c.announcer.announce(migration, told)
        if decision.path:
            words = self._c.traces.words(migration.metadata.uid)
            log.info("migration advanced", path=list(decision.path), **words)
        await Acts(self._c, seen.zone, seen.runtime, migration).carry_out(decision.actions)
        return decision.wake_seconds

    async def _after_the_end(
        self, key: ObjectKey, migration: RegionMigration, status: RegionMigrationStatus
    ) -> None:
        """Follow a change of `retainOldLeaderSeconds`, the only one that means anything now.

        The zone's status is written before this one, so a crash in between repeats it.
        """
        since = status.context.retained_time if status.context is not None else None
        until = retained_until(migration.spec, since) if since is not None else None
        if until != status.retain_old_leader_until_time:
            await self._retain_until(key, migration, until)
            status = status.model_copy(update={"retain_old_leader_until_time": until})
        elif status.observed_generation == migration.metadata.generation:
            return
        await self._c.store.write_status(migration, seen_by_operator(migration, status))

    async def _retain_until(
        self, key: ObjectKey, migration: RegionMigration, until: datetime | None
    ) -> None:
        name = migration.spec.zone_name
        zone = await self._c.store.find(DistributionZone, key.namespace, name)
        if zone is not None:
            runtime = self._c.runtime(ZoneKey(key.namespace, name), zone.metadata.uid)
            await Acts(self._c, zone, runtime, migration).retain_until(key.name, until)
