"""The agent itself: which nodes are ours, and a worker for every pod bound to one of them.

The API server's lists are the truth. After a restart the records on disk tell which processes
belong to which pod; what has no pod any more is ended.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from rezone.local.agent.addresses import Addresses
from rezone.local.agent.container import kill
from rezone.local.agent.nodes import Heart, add_node, is_failed
from rezone.local.agent.pod import PodWorker
from rezone.local.agent.provisioner import Provisioner
from rezone.local.agent.records import PodRecord, load_record
from rezone.local.agent.server import KubeletServer
from rezone.local.agent.settings import AGENT_LABEL, AgentSettings, Services
from rezone.local.agent.waiting import cancelled, ended
from rezone.local.api import Json, KubeApi
from rezone.local.certificates import CertificateAuthority
from rezone.local.processes import remove_tree

_STOP_SECONDS = 5.0

_log = structlog.get_logger(__name__)


@dataclass
class _Node:
    """A node that is up."""

    address: str
    heart: Heart
    beating: asyncio.Task[None]


class Agent:
    """Runs the pods of all nodes with our label, in one event loop."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._api = KubeApi(settings.kubeconfig)
        self._addresses = Addresses(settings.state / "addresses.json", settings.pod_network)
        self._nodes: dict[str, _Node] = {}
        self._pods: dict[str, Json] = {}
        self._workers: dict[str, PodWorker] = {}
        self._server = KubeletServer(CertificateAuthority(settings.pki), self._find_worker)
        self._provisioner = Provisioner(
            self._api, settings.state / "volumes", lambda name: name in self._nodes
        )
        self._services = Services(
            settings=settings,
            api=self._api,
            addresses=self._addresses,
            node_address=self._node_address,
            provision=self._provisioner.provision,
        )

    async def run(self, nodes: list[str]) -> None:
        """Add the named nodes and serve all of ours until cancelled; the pods go on then."""
        async with self._api:
            await self._server.start()
            try:
                await self._provisioner.ensure_class()
                for name in nodes:
                    await add_node(self._api, name)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._follow_nodes())
                    group.create_task(self._follow_pods())
                    group.create_task(self._provisioner.serve_claims())
                    group.create_task(self._provisioner.serve_volumes())
            finally:
                await self._close()

    async def _close(self) -> None:
        for node in self._nodes.values():
            await cancelled(node.beating)
        await asyncio.gather(*(worker.suspend() for worker in self._workers.values()))
        for task in tuple(self._services.event_tasks):
            await cancelled(task)
        await self._server.stop()

    async def _follow_nodes(self) -> None:
        selector = {"labelSelector": AGENT_LABEL}
        async for event, item in self._api.follow("/api/v1/nodes", **selector):
            if event == "SYNC":
                wanted = {node["metadata"]["name"]: node for node in item["items"]}
                for name in set(self._nodes) - set(wanted):
                    await self._take_down(name)
                for node in wanted.values():
                    await self._see_node(node)
            elif event == "DELETED":
                await self._take_down(item["metadata"]["name"])
            else:
                await self._see_node(item)

    async def _see_node(self, node: Json) -> None:
        name = node["metadata"]["name"]
        if is_failed(node):
            await self._take_down(name)
        elif name in self._nodes:
            self._nodes[name].heart.see(node)
        else:
            await self._bring_up(name)

    async def _bring_up(self, name: str) -> None:
        address = self._addresses.for_node(name)
        port = await self._server.listen(address)
        heart = Heart(self._api, self._settings, name, address, port)
        beating = asyncio.create_task(heart.beat(), name=f"node {name}")
        self._nodes[name] = _Node(address, heart, beating)
        _log.info("node is up", node=name, address=address, port=port)
        for pod in self._pods.values():
            self._see_pod(pod)

    async def _take_down(self, name: str) -> None:
        """Let a node vanish as by a power cut: no heartbeat, no process, no last word."""
        node = self._nodes.pop(name, None)
        if node is None:
            return
        _log.info("node is down", node=name)
        await cancelled(node.beating)
        await self._server.silence(node.address)
        lost = [uid for uid, worker in self._workers.items() if worker.record.node == name]
        workers = [self._workers.pop(uid) for uid in lost]
        await asyncio.gather(*(worker.suspend(kill_processes=True) for worker in workers))

    async def _follow_pods(self) -> None:
        async for event, item in self._api.follow("/api/v1/pods"):
            if event == "SYNC":
                await self._see_all_pods(item["items"])
            elif event == "DELETED":
                self._forget_pod(item["metadata"]["uid"])
            else:
                self._pods[item["metadata"]["uid"]] = item
                self._see_pod(item)

    async def _see_all_pods(self, pods: list[Json]) -> None:
        self._pods = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid in set(self._workers) - set(self._pods):
            self._forget_pod(uid)
        await end_orphans(self._settings.state, keep=set(self._pods) | set(self._workers))
        self._addresses.keep_pods(set(self._pods) | set(self._workers))
        for pod in pods:
            self._see_pod(pod)

    def _forget_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        worker = self._workers.pop(uid, None)
        if worker is None and pod is not None:
            # Of a failed node: its processes are dead already.
            self._addresses.release_pod(uid)
            remove_tree(self._services.pod_directory(pod))
        if worker is not None and not worker.done:
            worker.vanish()
            # Its address is free only when its processes are gone; the worker itself sees to that.
            waiter = asyncio.create_task(worker.finished())
            self._services.event_tasks.add(waiter)
            waiter.add_done_callback(self._services.event_tasks.discard)

    def _see_pod(self, pod: Json) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
        if node not in self._nodes:
            return
        worker = self._workers.get(metadata["uid"])
        if worker is not None:
            worker.update(pod)
            return
        record = load_record(self._services.pod_directory(pod)) or PodRecord(
            metadata["uid"], metadata["namespace"], metadata["name"], node
        )
        worker = PodWorker(pod, record, self._services)
        self._workers[metadata["uid"]] = worker
        worker.start()

    def _find_worker(self, namespace: str, name: str) -> PodWorker | None:
        for worker in self._workers.values():
            if (worker.record.namespace, worker.record.name) == (namespace, name):
                return worker
        return None

    def _node_address(self, name: str) -> str | None:
        node = self._nodes.get(name)
        return node.address if node else None


async def end_orphans(state: Path, keep: set[str]) -> None:
    """Kill the processes and remove the directories of all recorded pods but those to keep."""
    for directory in _pod_directories(state):
        record = load_record(directory)
        if record is not None and record.uid in keep:
            continue
        killed = [kill(item) for item in record.containers.values()] if record else []
        await asyncio.gather(*(ended(process) for process in killed if process))
        if directory.name.rpartition("_")[2] not in keep:
            remove_tree(directory)


def stop_all_pods(state: Path) -> None:
    """End all recorded processes, SIGTERM, then SIGKILL: the whole cluster goes down."""
    records = [load_record(directory) for directory in _pod_directories(state)]
    processes = [
        item.process
        for record in records
        if record is not None
        for item in record.containers.values()
        if item.process is not None and item.process.alive()
    ]
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        if not process.wait(max(0.0, deadline - time.monotonic())):
            process.signal(signal.SIGKILL)
            process.wait(_STOP_SECONDS)


def _pod_directories(state: Path) -> list[Path]:
    root = state / "pods"
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
