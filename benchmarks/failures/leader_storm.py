"""How long a thousand empty partitions take to change their leaders, by one RebalanceTask.

    PYTHONPATH=operator:benchmarks python benchmarks/failures/leader_storm.py [--partitions 1024]
        [--each]

A real control plane with a node agent that runs data nodes as processes, and the operator as users
run it, all on this machine. Every partition's replicas are rotated by one, so that each leader
moves to the next in-sync replica and nothing is copied: in batches, or with `--each` by a
RegionMigration for each. Measured are the time from the task's creation to its end, the writes the
API server took, and the CPU time of each process.
"""

import argparse
import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.operated import NAMESPACE, cpu_seconds, local_cluster, operator, writes_of

from rezone.local.api import Json, KubeApi
from rezone.local.cluster import LocalCluster

_GROUP = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}"
_ZONES = f"{_GROUP}/distributionzones"
_TASKS = f"{_GROUP}/rebalancetasks"
_DEADLINE_SECONDS = 900.0


async def _until(api: KubeApi, path: str, what: str, check: Callable[[Json], Any]) -> Json:
    async with asyncio.timeout(_DEADLINE_SECONDS):
        async for event, item in api.follow(path):
            for each in item["items"] if event == "SYNC" else [item]:
                if check(each.get("status") or {}):
                    return each
    raise AssertionError(f"a watch never ends: {what}")


def _ready(status: Json) -> bool:
    return any(
        c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()
    )


def _zone(given: argparse.Namespace) -> Json:
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": "storm"},
        "spec": {
            "partitions": given.partitions,
            "replicas": 3,
            "minInSyncReplicas": 2,
            "storage": {"engine": "Memory"},
            "dataNodes": {"count": given.nodes},
            "rebalance": {
                "maxConcurrentMigrations": given.at_once,
                "maxMigrationsPerNode": given.at_once,
                "maxConcurrentHandovers": 0 if given.each else given.at_once,
            },
        },
    }


def _rotation(zone: Json) -> Json:
    text = zone["status"]["assignments"]["stable"]["replicas"]
    moves = []
    for partition, nodes in enumerate(text.split(";")):
        first, *rest = map(int, nodes.split(","))
        moves.append({"partition": partition, "replicas": [*rest, first]})
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "RebalanceTask",
        "metadata": {"name": "storm"},
        "spec": {"zoneName": "storm", "type": "Moves", "moves": moves},
    }


def _pids(cluster: LocalCluster, operator_pid: int) -> dict[str, int]:
    found = {part.name: part.pid for part in cluster.status() if part.pid is not None}
    return {"operator": operator_pid} | found


def _node_pids() -> list[int]:
    listed = subprocess.run(
        ["pgrep", "-f", "data-node --node-id .* --zone storm"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(line) for line in listed.stdout.split()]


async def _run(given: argparse.Namespace, cluster: LocalCluster, log: Path) -> None:
    with operator(cluster.kubeconfig, log) as pid:
        async with KubeApi(cluster.kubeconfig) as api:
            begun = time.monotonic()
            await api.create(_ZONES, _zone(given))
            zone = await _until(api, _ZONES, "Ready", _ready)
            print(f"{given.partitions} partitions: Ready after {time.monotonic() - begun:.1f} s")
            pids = _pids(cluster, pid)
            before = {name: cpu_seconds(each) for name, each in pids.items()}
            nodes = {each: cpu_seconds(each) for each in _node_pids()}
            writes, begun = writes_of(cluster.kubeconfig), time.monotonic()
            await api.create(_TASKS, _rotation(zone))
            ends = ("Succeeded", "Failed", "Cancelled")
            task = await _until(api, _TASKS, "end", lambda s: s.get("state") in ends)
            seconds = time.monotonic() - begun
            taken = writes_of(cluster.kubeconfig) - writes
            print(f"{given.partitions} leaders moved in {seconds:.1f} s: {task['status']['state']}")
            print(f"  writes          {taken:6d}, {taken / given.partitions:.1f} a partition")
            for name, each in pids.items():
                print(f"  {name:<24} {cpu_seconds(each) - before[name]:6.1f} CPU s")
            used = sum(cpu_seconds(each) - was for each, was in nodes.items())
            print(f"  {'data nodes':<24} {used:6.1f} CPU s")


def main() -> None:
    """Make the zone, move all leaders, print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1024)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=64, help="leaders that move at once")
    parser.add_argument("--each", action="store_true", help="a RegionMigration for each leader")
    given = parser.parse_args()
    with local_cluster(given.nodes) as (cluster, logs):
        asyncio.run(_run(given, cluster, logs / "operator.log"))


if __name__ == "__main__":
    main()
