"""What the passes of tasks and migrations begin with: their zone, its runtime and one view."""

import dataclasses

from rezone.controller.coordinator import Coordinator
from rezone.controller.keys import ObjectKey, ZoneKey
from rezone.controller.observe import build_view
from rezone.controller.runtime import ZoneRuntime
from rezone.domain.world import SparkView, ZoneView
from rezone.resources.migration import RegionMigration
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import PartitionId


@dataclasses.dataclass(frozen=True)
class ZonePass:
    """A zone as one pass sees it."""

    zone: DistributionZone
    runtime: ZoneRuntime
    view: ZoneView


async def begin_pass(
    coordinator: Coordinator,
    key: ObjectKey,
    zone_name: str,
    *,
    partition: PartitionId | None = None,
    spark: SparkView | None = None,
) -> ZonePass | None:
    """Return the zone of a task or migration, read now; None when there is none.

    The object is woken by the zone's news from here on, of one partition when it is about one,
    until `Coordinator.unfollow` ends it.
    """
    zone_key = ZoneKey(key.namespace, zone_name)
    coordinator.follow(zone_key, key, partition)
    zone = await coordinator.store.find(DistributionZone, key.namespace, zone_name)
    if zone is None or zone.metadata.deletion_timestamp is not None:
        return None
    runtime = coordinator.runtime(zone_key, zone.metadata.uid)
    store = runtime.route_store(coordinator.kube, zone)
    found = await coordinator.store.list(RegionMigration, key.namespace)
    view = build_view(
        zone,
        runtime,
        routes=await runtime.routes(store),
        migrations=[m for m in found if m.spec.zone_name == zone_name],
        spark=spark,
        leader_lease_seconds=coordinator.settings.leader_lease_seconds,
    )
    return ZonePass(zone, runtime, view)
