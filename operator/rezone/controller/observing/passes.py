"""What the passes of tasks and migrations begin with: their zone, its runtime and one view."""

import dataclasses
from collections.abc import Sequence

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.observing.observe import build_view, owner_task_of
from rezone.controller.work.keys import ObjectKey, ZoneKey
from rezone.domain.machines.migration_table import NOT_BEGUN
from rezone.domain.model.world import SparkView, ZoneView
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import FIRST_PARTITION_EPOCH


@dataclasses.dataclass(frozen=True)
class ZonePass:
    """A zone as one pass sees it."""

    zone: DistributionZone
    runtime: ZoneRuntime
    view: ZoneView
    index: int | None
    """The partition that the object is about, None for all."""

    @property
    def is_open(self) -> bool:
        """Whether all replicas of the partitions have been opened.

        Before, a record may only be confirmed: a replica that hears of a later epoch first is taken
        for one that has lost its rows, and is never opened.
        """
        records = self.view.routes.of(self.view.generation)
        if self.index is not None:
            records = records[self.index : self.index + 1] or records
        return bool(records) and all(r.partition_epoch > FIRST_PARTITION_EPOCH for r in records)


async def begin_pass(
    coordinator: Coordinator,
    key: ObjectKey,
    zone_name: str,
    *,
    migration: RegionMigration | None = None,
    task: RebalanceTask | None = None,
    spark: SparkView | None = None,
) -> ZonePass | None:
    """Return the zone of `task` or of `migration`, read now; None when there is none.

    The object is woken by the zone's deltas from here on, of one partition when it is about one,
    until `Coordinator.unfollow` ends it.
    """
    index = migration.spec.partition if migration is not None else None
    zone_key = ZoneKey(key.namespace, zone_name)
    coordinator.follow(zone_key, key, index)
    zone = await coordinator.store.find(DistributionZone, key.namespace, zone_name)
    if zone is None or zone.metadata.deletion_timestamp is not None:
        return None
    runtime = coordinator.runtime(zone_key, zone.metadata.uid)
    store = runtime.route_store(coordinator.kube, zone)
    migrations = await _migrations(coordinator, key.namespace, zone_name, migration)
    owner = task or migration
    if spark is not None and not spark.state and owner is not None:
        error = runtime.spark_errors.get(owner.metadata.uid, "")
        spark = dataclasses.replace(spark, error=error)
    view = build_view(
        zone,
        runtime,
        routes=await runtime.routes(store),
        migrations=migrations,
        taken_names=runtime.taken_names.get(task.metadata.uid, {}) if task is not None else {},
        spark=spark,
        leader_lease_seconds=coordinator.settings.leader_lease_seconds,
    )
    return ZonePass(zone, runtime, view, index)


async def _migrations(
    coordinator: Coordinator,
    namespace: str,
    zone_name: str,
    migration: RegionMigration | None,
) -> Sequence[RegionMigration]:
    """Return the migrations that a pass decides by; the fewer, the more may run at once.

    A task looks at all of its zone. A migration that has begun looks at none but itself; before,
    it looks whether another one moves the same partition, and, unless it is a task's and has its
    slot from there, for a free slot among all.
    """
    fields = {"spec.zoneName": zone_name}
    if migration is not None:
        state = migration.status.state if migration.status is not None else ""
        if state not in NOT_BEGUN:
            return (migration,)
        if owner_task_of(migration):
            fields["spec.partition"] = str(migration.spec.partition)
    return await coordinator.store.list_all(RegionMigration, namespace, fields=fields)
