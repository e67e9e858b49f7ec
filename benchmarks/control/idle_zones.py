"""What zones at rest cost: CPU of the operator and of the API server, and writes.

    PYTHONPATH=operator:benchmarks python benchmarks/control/idle_zones.py [--zones 100]
        [--data-nodes 1]

A real etcd and kube-apiserver, the operator as users run it, and real data nodes, all of them in
one process of their own (their cost is not measured here). The benchmark plays the kubelet: it
gives pods their addresses. Figures are CPU time over the time measured, as a share of one core;
the same processes with no zones are measured first, so that the difference is the zones'.
"""

import argparse
import asyncio
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path

import structlog
from harness.operated import NAMESPACE, cpu_seconds, operator, writes_of

from rezone.datanode.node.node import DataNode
from rezone.datanode.service.server import NodeServer
from rezone.kube.api.names import NODE_ID_LABEL
from rezone.local.api import Json, KubeApi
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings
from rezone.resources.crd import custom_resource_definitions

_PORT = 7400
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_ZONES = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}/distributionzones"
_ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_READY_SECONDS = 600.0


def host_nodes(orders: Connection, directory: Path) -> None:
    """Serve a data node at every address that is asked for, until told to stop."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    serving = []
    while (order := orders.recv()) is not None:
        address, node_id = order
        node = DataNode(node_id, directory / address)
        node.open()
        serving.append(NodeServer(node, f"{address}:{_PORT}"))
        orders.send(len(serving))
    # Not a return through the interpreter's end: Flight would wait for open calls there.
    os._exit(0)


class Kubelet:
    """Gives every pod an address and a data node there."""

    def __init__(self, api: KubeApi, hosts: Connection) -> None:
        self._api = api
        self._hosts = hosts
        self._count = 0

    async def run(self) -> None:
        """Play the kubelet for ever."""
        async for event, item in self._api.follow(_PODS):
            for pod in item["items"] if event == "SYNC" else [item]:
                if event != "DELETED" and not pod.get("status", {}).get("podIP"):
                    await self._start(pod)

    async def _start(self, pod: Json) -> None:
        self._count += 1
        address = f"127.101.{self._count // 250}.{self._count % 250 + 1}"
        self._hosts.send((address, int(pod["metadata"]["labels"][NODE_ID_LABEL])))
        await asyncio.to_thread(self._hosts.recv)
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": address, "conditions": [ready]}
        await self._api.patch(f"{_PODS}/{pod['metadata']['name']}/status", {"status": status})


async def _until_ready(api: KubeApi, zones: int) -> None:
    ready: set[str] = set()
    async with asyncio.timeout(_READY_SECONDS):
        async for event, item in api.follow(_ZONES):
            for zone in item["items"] if event == "SYNC" else [item]:
                conditions = (zone.get("status") or {}).get("conditions") or ()
                name = zone["metadata"]["name"]
                if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
                    ready.add(name)
                else:
                    ready.discard(name)
            if len(ready) == zones:
                return


def _zone(name: str, nodes: int) -> Json:
    spec = {
        "partitions": 1,
        "replicas": nodes,
        "minInSyncReplicas": max(1, nodes - 1),
        "dataNodes": {"count": nodes},
    }
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": name},
        "spec": spec,
    }


async def _measure(what: str, pids: dict[str, int], kubeconfig: Path, seconds: float) -> None:
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    writes = writes_of(kubeconfig)
    begun = time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - begun
    print(f"{what}, {passed:.0f} s")
    for name, pid in pids.items():
        share = (cpu_seconds(pid) - before[name]) / passed
        print(f"  {name:<15} {share * 100:6.1f} % of a core")
    print(f"  writes          {writes_of(kubeconfig) - writes:6d}", flush=True)


async def _run(given: argparse.Namespace, directory: Path, hosts: Connection) -> None:
    plane = ControlPlane(
        directory / "plane", ControlPlaneSettings(components=("etcd", "kube-apiserver"))
    )
    try:
        plane.start()
        async with KubeApi(plane.kubeconfig) as api:
            for crd in custom_resource_definitions():
                await api.create(_CRDS, crd)
            await _established(api)
            # There is no controller-manager, whose part this is.
            await api.create(_ACCOUNTS, {"metadata": {"name": "default"}})
            with operator(plane.kubeconfig, directory / "operator.log") as pid:
                pids = {"operator": pid} | {
                    name: part.pid for name, part in plane.running().items() if part is not None
                }
                await asyncio.sleep(given.settle)
                await _measure("no zones", pids, plane.kubeconfig, given.seconds)
                kubelet = asyncio.create_task(Kubelet(api, hosts).run())
                for number in range(given.zones):
                    await api.create(_ZONES, _zone(f"z{number}", given.data_nodes))
                await _until_ready(api, given.zones)
                await asyncio.sleep(given.settle)
                what = f"{given.zones} zones of {given.data_nodes} data nodes at rest"
                await _measure(what, pids, plane.kubeconfig, given.seconds)
                kubelet.cancel()
    finally:
        plane.stop()


async def _established(api: KubeApi) -> None:
    for crd in custom_resource_definitions():
        async for event, item in _one(api, crd["metadata"]["name"]):
            found = item["items"][0] if event == "SYNC" else item
            conditions = found.get("status", {}).get("conditions") or ()
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                break


def _one(api: KubeApi, name: str) -> AsyncIterator[tuple[str, Json]]:
    return api.follow(_CRDS, fieldSelector=f"metadata.name={name}")


def main() -> None:
    """Measure without zones, then with them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zones", type=int, default=100)
    parser.add_argument("--data-nodes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--settle", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rezone-bench-") as name:
        here, there = multiprocessing.get_context("spawn").Pipe()
        hosting = multiprocessing.get_context("spawn").Process(
            target=host_nodes, args=(there, Path(name) / "nodes"), daemon=True
        )
        hosting.start()
        try:
            asyncio.run(_run(given, Path(name), here))
        finally:
            here.send(None)
            hosting.join()


if __name__ == "__main__":
    main()
