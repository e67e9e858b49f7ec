"""What a zone's spec says reaches its data nodes."""

from __future__ import annotations

import pytest

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


@pytest.mark.proves("SP-05")
def test_data_nodes_are_told_of_an_overwrite_from_its_beginning_to_its_end() -> None:
    """They would backfill the old rows, serve two contents, or answer as of times of before."""
    metadata = {"name": "z", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    one = [routes.initial((0, 1, 2), 1)]
    both = RouteRecords(one).with_next(one, 4)

    def config(**keys: object) -> ZoneConfig:
        body = {"metadata": metadata, "spec": SPEC, "status": {"assignments": keys}}
        return zone_config(DistributionZone.parse(body), both)

    stable = {"revision": 1, "replicas": "0,1,2"}
    pending = {"revision": 2, "layoutVersion": 4, "replicas": "0,1,2", "filledBy": "job"}
    during = config(stable=stable, pending=pending, cancelledOverwrite="earlier")
    assert (during.next_generation, during.next_filled_by, during.filled_by) == (4, "job", "")
    assert during.cancelled_overwrite == "earlier"
    done = {"name": "job", "layoutVersion": 4, "readableFrom": 9, "oldReadableFrom": 3}
    after = config(stable=pending | {"filledBy": ""}, overwrite=done)
    assert (after.next_generation, after.next_filled_by, after.filled_by) == (4, "", "job")
    assert (after.readable_from, after.readable_generation, after.old_readable_from) == (9, 4, 3)
    later = config(stable=stable, pending=pending | {"layoutVersion": 5})
    assert later.next_filled_by == ""
