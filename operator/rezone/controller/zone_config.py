"""What data nodes must know of a zone, from its spec."""

from rezone.resources.zone import DistributionZone
from rezone.wire.messages import ZoneConfig
from rezone.wire.schema import Column, Index, TableSchema


def zone_config(zone: DistributionZone, partitions: int) -> ZoneConfig:
    """Return the config that goes to the data nodes; `partitions` are those of the route table."""
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
            # By name: their order in the list may be changed, and entries carry their numbers.
            indexes=tuple(
                Index(index.name, index.columns)
                for index in sorted(spec.table_schema.indexes, key=lambda index: index.name)
            ),
        )
    return ZoneConfig(
        zone=zone.metadata.name,
        zone_uid=zone.metadata.uid,
        partitions=partitions,
        table=table,
        copy_bytes_per_second_max=spec.rebalance.max_bytes_per_second,
        foreground_percent=spec.rebalance.foreground_percent,
        engine=spec.storage.engine,
        replicas=spec.replicas,
        min_in_sync_replicas=spec.min_in_sync,
    )
