"""What data nodes must know of a zone, from its spec and its route table."""

from rezone.domain.observed.maintenance import active_ids
from rezone.domain.routing.route_records import RouteRecords
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import Assignments, Overwrite
from rezone.wire.codec.indexes import id_of
from rezone.wire.codec.schema import Column, Index, IndexId, TableSchema
from rezone.wire.layouts import Layout
from rezone.wire.messages import FeedLimits, ZoneConfig


def zone_config(zone: DistributionZone, routes: RouteRecords) -> ZoneConfig:
    """Return the config that goes to the data nodes; its layouts are those that have records."""
    spec = zone.spec
    table = TableSchema()
    if spec.table_schema is not None:
        keys = set(spec.table_schema.primary_key)
        table = TableSchema(
            columns=tuple(
                Column(c.name, c.type, nullable=c.nullable and c.name not in keys)
                for c in spec.table_schema.columns
            ),
            primary_key=spec.table_schema.primary_key,
            indexes=_indexes(zone),
        )
    new = routes.next_layout or Layout(0, 0)
    assigned = zone.status.assignments if zone.status is not None else Assignments()
    pending = assigned.pending
    overwrite = assigned.overwrite or Overwrite(name="", layout_version=0, readable_from=0)
    fills = pending is not None and pending.layout_version == new.generation
    return ZoneConfig(
        zone=zone.metadata.name,
        zone_uid=zone.metadata.uid,
        partitions=routes.layout.partitions,
        generation=routes.layout.generation,
        next_partitions=new.partitions,
        next_generation=new.generation,
        next_filled_by=pending.filled_by if pending is not None and fills else "",
        filled_by=overwrite.name,
        cancelled_overwrite=assigned.cancelled_overwrite,
        readable_from=overwrite.readable_from,
        readable_generation=overwrite.layout_version,
        old_readable_from=overwrite.old_readable_from,
        table=table,
        copy_bytes_per_second_max=spec.rebalance.max_bytes_per_second,
        foreground_target_percent=spec.rebalance.foreground_target_percent,
        engine=spec.storage.engine,
        replicas=spec.replicas,
        min_in_sync_replicas=spec.min_in_sync,
        version_retention_seconds=spec.storage.version_retention_seconds,
        feeds=_feeds(zone),
        maintenance=active_ids(zone.status.data_nodes) if zone.status is not None else (),
    )


def index_names(zone: DistributionZone) -> dict[IndexId, str]:
    """Return the names of the zone's indexes by the ids that data nodes know them by."""
    return {id_of(index): index.name for index in _indexes(zone)}


def _feeds(zone: DistributionZone) -> tuple[FeedLimits, ...]:
    """Return the named feeds by name: another order in the list is no change."""
    feeds = (
        FeedLimits(feed.name, feed.max_bytes, feed.max_age_seconds) for feed in zone.spec.feeds
    )
    return tuple(sorted(feeds, key=lambda feed: feed.name))


def _indexes(zone: DistributionZone) -> tuple[Index, ...]:
    """Return the indexes by name: another order in the list is no change."""
    schema = zone.spec.table_schema
    found = [Index(index.name, index.columns) for index in schema.indexes] if schema else []
    return tuple(sorted(found, key=lambda index: index.name))
