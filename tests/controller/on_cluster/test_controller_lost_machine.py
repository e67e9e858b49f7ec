"""A machine falls silent with the leading operator and a data node on it: both are frozen.

Nothing is refused and no connection breaks; only times tell (docs/operate/failures/failover.md).
How long it takes is measured by benchmarks/failures/lost_machine.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from operated_cluster import (
    TestCluster,
    Writer,
    addresses_of,
    check_settled,
    make_zone,
    routes_of,
    until,
)
from operator_process import EVERY_POINT, OperatorProcess

from rezone.local.api import Json, KubeApi

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not EVERY_POINT, reason="half a minute more: make chaos-operator"),
]

NAMESPACE = "silent"
NODES = ("worker-1", "worker-2", "worker-3")
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LEASE_SECONDS, LEADER_LEASE_SECONDS = 6, 6.0


def held_by(pod: str) -> Callable[[Json], bool]:
    """Return whether a pod's process has the Lease."""
    return lambda lease: lease["spec"].get("holderIdentity", "").startswith(f"{pod}_")


@pytest.mark.proves("B-06", "B-09")
async def test_the_waiting_operator_gives_what_a_silent_machine_led_to_others(
    cluster: TestCluster, api: KubeApi, tmp_path: Path
) -> None:
    """Writes would stand still until somebody looks, and again whenever nobody coordinates."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    operators = []
    for name in ("first", "second"):
        (logs := tmp_path / name).mkdir()
        times = {
            "REZONE_LEASE_DURATION_SECONDS": str(LEASE_SECONDS),
            "REZONE_LEADER_LEASE_SECONDS": str(LEADER_LEASE_SECONDS),
        }
        operators.append(OperatorProcess(cluster, NAMESPACE, logs, POD_NAME=name, **times))
    first, second = operators
    first.start()
    try:
        zone = await make_zone(cluster, api, NAMESPACE, "main", NODES)
        second.start()
        await second.until_ready()
        record = (await routes_of(api, NAMESPACE, "main"))[0]
        pod = next(n["podName"] for n in zone["status"]["dataNodes"] if n["id"] == record.leader)
        group = cluster.pod_pid(NAMESPACE, pod)
        assert group is not None
        with Writer(addresses_of(zone).values()) as writer:
            await asyncio.to_thread(writer.wait_for_more, 100)
            first.signal(signal.SIGSTOP)
            os.killpg(group, signal.SIGSTOP)
            try:
                await asyncio.to_thread(writer.wait_for_more, 20)
            finally:
                os.killpg(group, signal.SIGCONT)
            await until(api, LEASES, "rezone-operator", held_by("second"))
            said = (tmp_path / "second" / "operator.log").read_text()
            assert "the leader does not answer" in said, "it has waited for the Lease"
            await check_settled(api, NAMESPACE, "main")
            second.kill()
            # Nobody coordinates now: one is frozen, the other dead.
            await asyncio.to_thread(writer.wait_for_more, 20)
        await asyncio.to_thread(writer.check)
    finally:
        for each in operators:
            each.kill()
