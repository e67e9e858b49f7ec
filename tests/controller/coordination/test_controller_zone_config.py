"""What a zone's spec says reaches its data nodes."""

from __future__ import annotations

from rezone.controller.coordination.zone_config import zone_config
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import EngineKind, ZoneConfig

SPEC = {
    "partitions": 1,
    "replicas": 3,
    "minInSyncReplicas": 1,
    "dataNodes": {"count": 3},
    "rebalance": {"maxBytesPerSecond": 7, "foregroundTargetPercent": 31},
    "storage": {"engine": "Memory", "versionRetentionSeconds": 61},
}


def test_data_nodes_are_told_who_is_in_maintenance() -> None:
    """They would trim the log that the node needs when it is back."""
    metadata = {"name": "z", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    asked = {"sinceTime": "2026-01-01T00:00:00Z", "untilTime": "2026-01-01T01:00:00Z"}
    states = (None, "Active", "Waiting", "Over")
    nodes = [
        {"id": n, "podName": f"z-{n}"} | ({"maintenance": asked | {"state": s}} if s else {})
        for n, s in enumerate(states)
    ]
    body = {"metadata": metadata, "spec": SPEC, "status": {"dataNodes": nodes}}
    zone = DistributionZone.parse(body)
    config = zone_config(zone, RouteRecords([routes.initial((0, 1, 2), 1)]))
    assert config.maintenance == (1,)


def test_every_setting_of_a_zone_reaches_its_data_nodes() -> None:
    """It would be taken by the API server and change nothing."""
    metadata = {"name": "z", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    zone = DistributionZone.parse({"metadata": metadata, "spec": SPEC})
    assert zone_config(zone, RouteRecords([routes.initial((0, 1, 2), 1)])) == ZoneConfig(
        zone="z",
        zone_uid="u",
        partitions=1,
        copy_bytes_per_second_max=7,
        foreground_target_percent=31,
        engine=EngineKind.MEMORY,
        replicas=3,
        min_in_sync_replicas=1,
        version_retention_seconds=61,
    )
