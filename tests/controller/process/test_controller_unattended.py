"""Neither an operator nor an API server is there: data nodes serve on by themselves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pyarrow as pa
import pytest
from operated_cluster import (
    SCHEMA,
    TestCluster,
    Writer,
    abort_connections,
    addresses_of,
    check_settled,
    make_zone,
    remove_zone,
)
from operator_process import OperatorProcess

from rezone.client import TableClient
from rezone.local.api import KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(240)]

NAMESPACE = "unattended"
ZONE = "main"
UNATTENDED_SECONDS = 12.0
"""Four times the operator's Lease, twelve times the leaders' read leases (`environment_of`)."""


def read_back(addresses: dict[int, str]) -> None:
    """Write a row and read it by a client that begins now: it has nothing but the data nodes."""
    row = pa.record_batch([pa.array([b"late"]), pa.array([b"1"])], schema=SCHEMA)
    with TableClient(sorted(addresses.values())) as client:
        client.write(row)
        assert client.read(row.select(["key"])).to_pylist() == [{"key": b"late", "value": b"1"}]


@pytest.mark.proves("B-09")
async def test_writes_and_reads_go_on_without_operator_and_api_server(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """Both are ended, and clients write and read on for many times as long as any lease lasts.

    Without it an outage of the API server would be an outage of all tables.
    """
    cluster.kubectl("create", "namespace", NAMESPACE)
    operator = OperatorProcess(cluster, NAMESPACE, tmp_path)
    operator.start()
    local = LocalCluster(cluster.state, ControlPlaneSettings(unsafe_no_fsync=True))
    plane = ControlPlane(cluster.state, ControlPlaneSettings(unsafe_no_fsync=True))
    nodes = ("worker-1", "worker-2", "worker-3")
    try:
        async with KubeApi(cluster.kubeconfig) as api:
            zone = await make_zone(cluster, api, NAMESPACE, ZONE, nodes)
        await abort_connections(set())
        addresses = addresses_of(zone)
        with Writer(addresses.values()) as writer:
            await asyncio.to_thread(writer.wait_for_more, 20)
            operator.kill()
            with local._lock():  # or its supervisor starts the API server again
                plane.stop()
                until = time.monotonic() + UNATTENDED_SECONDS
                while time.monotonic() < until:
                    await asyncio.to_thread(writer.wait_for_more, 20)
                    await asyncio.to_thread(read_back, addresses)
                plane.start()
        # For a moment it answers 429 for our kinds; kubectl waits as it is told.
        cluster.kubectl("get", "distributionzones,rebalancetasks,regionmigrations")
        await asyncio.to_thread(writer.check)
        operator.start()
        async with KubeApi(cluster.kubeconfig) as api:
            await check_settled(api, NAMESPACE, ZONE)
            await remove_zone(api, NAMESPACE, ZONE)
        await abort_connections(set())
    finally:
        operator.kill()
