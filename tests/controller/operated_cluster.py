"""What the tests on a real cluster share: objects, waits by watch, writers, checks of the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar

import msgspec
import pyarrow as pa

from rezone.client import TableClient
from rezone.client.settings import ClientSettings, OutcomeUnknownError
from rezone.controller.nodes.node_state import request_after, with_answer
from rezone.local.agent.records import load_record
from rezone.local.api import Json, KubeApi
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    LeaderAndIsr,
    Message,
    NodeReport,
    ReplicaReport,
    ReportRequest,
    Role,
    RoutesRequest,
    RouteTable,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient

ROOT = Path(__file__).parents[2]
CRDS = ROOT / "crds"
SCHEMA = arrow_schema_of(TableSchema())
DEADLINE_SECONDS = 180.0
"""Only what hangs takes as long: other suites run beside these tests, and have the machine too."""
WRITE_PAUSE_SECONDS = 0.04
"""Without a pause between its writes a test's writer takes what the machine has from all else."""
TERMINAL_TASKS = frozenset({"Succeeded", "Failed", "Cancelled"})
TERMINAL_MIGRATIONS = frozenset({"Succeeded", "Failed", "RolledBack"})

Answer = TypeVar("Answer", bound=Message)


@dataclasses.dataclass(frozen=True)
class TestCluster:
    """One local cluster."""

    __test__ = False

    state: Path
    kubeconfig: Path
    kubectl_path: Path

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl; its message is in the failure."""
        command = [str(self.kubectl_path), "--kubeconfig", str(self.kubeconfig), *words]
        done = subprocess.run(
            command, input=stdin.encode(), capture_output=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{words}: {done.stderr.decode()}"
        return done.stdout.decode()

    def install_crds(self) -> None:
        """Apply the project's kinds and wait until they are served."""
        self.kubectl("apply", "--server-side", "--filename", str(CRDS))
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        # For a moment the API server answers 429 for a new kind; kubectl waits as it is told.
        self.kubectl("get", "distributionzones,rebalancetasks,regionmigrations")

    def apply(self, *objects: Json) -> None:
        """Apply objects."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--filename", "-", stdin=text)

    def label(self, namespace: str, zone: str, *nodes: str) -> None:
        """Put nodes into a zone's pool."""
        self.kubectl("label", "--overwrite", "node", *nodes, f"{pool_of(namespace, zone)}=yes")

    def pod_pid(self, namespace: str, pod: str, container: str = "data-node") -> int | None:
        """Return the process group of a container of a pod, None while it does not run.

        The group, not the process alone: the agent's pid is that of a shell around the data node.
        """
        for directory in (self.state / "pods").glob(f"{namespace}_{pod}*"):
            record = load_record(directory)
            found = record.containers.get(container) if record is not None else None
            if record is not None and record.name == pod and found and found.process:
                return found.process.pid
        return None

    def open_logs(self, namespace: str, pods: str, stack: contextlib.ExitStack) -> list[TextIO]:
        """Open the logs of data nodes that run now: they can be read when their pods are gone."""
        found = (self.state / "pods").glob(f"{namespace}_{pods}_*/data-node/*.log")
        return [stack.enter_context(path.open()) for path in found]


def pool_of(namespace: str, zone: str) -> str:
    """Return the label of a zone's nodes: its own, for modules share the cluster, and names."""
    return f"rezone.dev/pool-{namespace}-{zone}"


def data_nodes(namespace: str, zone: str, **more: Any) -> Json:
    """Return a zone's `dataNodes`: on its own pool, and as it says besides.

    A data node that is starved for a moment is not lost for good: its replicas stay where they are.
    """
    return {
        "nodeSelector": {pool_of(namespace, zone): "yes"},
        "autoAdjust": {"scaleUpSeconds": 0, "scaleDownSeconds": 3_600},
        **more,
    }


def zone_manifest(namespace: str, name: str, **changes: Any) -> Json:
    """Return a zone of 4 partitions with 3 replicas on the nodes of its own pool."""
    spec = {
        "partitions": 4,
        "replicas": 3,
        "minInSyncReplicas": 2,
        "dataNodes": data_nodes(namespace, name),
    }
    return _object("DistributionZone", namespace, name, spec | changes)


def task_manifest(namespace: str, name: str, zone: str, moves: dict[int, tuple[int, ...]]) -> Json:
    """Return a RebalanceTask of type Moves."""
    listed = [{"partition": p, "replicas": list(nodes)} for p, nodes in moves.items()]
    return _object(
        "RebalanceTask", namespace, name, {"zoneName": zone, "type": "Moves", "moves": listed}
    )


def migration_manifest(
    namespace: str, name: str, zone: str, partition: int, target: int, **more: Any
) -> Json:
    """Return a RegionMigration as a person applies it."""
    spec = {"zoneName": zone, "partition": partition, "target": target} | more
    return _object("RegionMigration", namespace, name, spec)


def _object(kind: str, namespace: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def path_of(namespace: str, plural: str) -> str:
    """Return the path of a collection of ours."""
    return f"/apis/rezone.dev/v1alpha1/namespaces/{namespace}/{plural}"


async def until(
    api: KubeApi,
    path: str,
    name: str,
    predicate: Callable[[Json], Any],
    *,
    seconds: float = DEADLINE_SECONDS,
) -> Json:
    """Watch one object until it is as wanted and return it (an empty one stands for none)."""
    selector = {"fieldSelector": f"metadata.name={name}"}
    last: Json = {}
    try:
        async with asyncio.timeout(seconds):
            async with contextlib.aclosing(api.follow(path, **selector)) as events:  # type: ignore[type-var]
                async for event, item in events:
                    last = (item["items"] or [{}])[0] if event == "SYNC" else item
                    last = {} if event == "DELETED" else last
                    if predicate(last):
                        return last
    except TimeoutError:
        text = json.dumps({"spec": last.get("spec"), "status": last.get("status")}, indent=1)
        raise AssertionError(f"{path}/{name} not as wanted in {seconds} s:\n{text}") from None
    raise AssertionError("a watch never ends")


async def until_zone(
    api: KubeApi, namespace: str, name: str, predicate: Callable[[Json], Any], **options: Any
) -> Json:
    """Watch a zone until it is as wanted."""
    return await until(api, path_of(namespace, "distributionzones"), name, predicate, **options)


def is_led(zone: Json) -> bool:
    """Return whether every partition has a leader."""
    found = condition(zone, "Ready")
    return found.get("status") == "True" or found.get("reason") == "UnderReplicated"


async def fail_over(cluster: TestCluster, api: KubeApi, namespace: str, zone: str) -> None:
    """Freeze a leader's process until others lead its partitions; then it may follow."""
    dead = (await routes_of(api, namespace, zone))[0].leader
    group = cluster.pod_pid(namespace, f"{zone}-{dead}")
    assert group is not None
    os.killpg(group, signal.SIGSTOP)
    try:
        # Conditions do not tell: a zone may lack in-sync replicas before its leader is missed.
        await until_records(
            api, namespace, zone, lambda found: dead not in {r.leader for r in found.values()}
        )
        await until_zone(api, namespace, zone, is_led)
    finally:
        os.killpg(group, signal.SIGCONT)


def condition(found: Json, kind: str) -> Json:
    """Return a condition, an empty one when it is not there."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def is_ready(found: Json) -> bool:
    """Return whether a zone is Ready."""
    return condition(found, "Ready").get("status") == "True"


def state_of(found: Json) -> str:
    """Return the state of a task or a migration."""
    return str((found.get("status") or {}).get("state", ""))


def addresses_of(zone: Json) -> dict[int, str]:
    """Return the data nodes' addresses."""
    nodes = zone["status"]["dataNodes"]
    return {n["id"]: n["address"] for n in nodes if n.get("address")}


async def routes_of(api: KubeApi, namespace: str, zone: str) -> tuple[LeaderAndIsr, ...]:
    """Return the zone's route table as stored, by index."""
    return tuple((await records_of(api, namespace, zone)).values())


async def records_of(api: KubeApi, namespace: str, zone: str) -> dict[int, LeaderAndIsr]:
    """Return the zone's route table as stored, by partition id and in their order."""
    labels, path = _routes(namespace, zone)
    texts = {
        int(key): text
        for shard in (await api.get(path, labelSelector=labels))["items"]
        for key, text in shard["data"].items()
    }
    return {p: msgspec.json.decode(texts[p], type=LeaderAndIsr) for p in sorted(texts)}


def _routes(namespace: str, zone: str) -> tuple[str, str]:
    """Return a zone's route table as a label selector and the collection that it is in."""
    labels = f"rezone.dev/zone={zone},app.kubernetes.io/component=routes"
    return labels, f"/api/v1/namespaces/{namespace}/configmaps"


async def until_records(
    api: KubeApi, namespace: str, zone: str, predicate: Callable[[dict[int, LeaderAndIsr]], Any]
) -> None:
    """Watch a zone's route table until it is as wanted."""
    labels, path = _routes(namespace, zone)
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with contextlib.aclosing(api.follow(path, labelSelector=labels)) as events:  # type: ignore[type-var]
            async for _ in events:
                if predicate(await records_of(api, namespace, zone)):
                    return


def reports_of(addresses: dict[int, str]) -> dict[int, dict[int, ReplicaReport]]:
    """Return what each data node says of its replicas."""
    reports = _ask(addresses, ReportRequest(), NodeReport)
    return {node: {r.partition: r for r in each.replicas} for node, each in reports.items()}


def configs_of(addresses: dict[int, str]) -> dict[int, ZoneConfig]:
    """Return what each data node knows of its zone."""
    tables = _ask(addresses, RoutesRequest(), RouteTable)
    return {node: table.config for node, table in tables.items()}


def _ask(addresses: dict[int, str], request: Message, answer: type[Answer]) -> dict[int, Answer]:
    found = {}
    for node, address in addresses.items():
        client = NodeClient(address)
        try:
            found[node] = client.call(request, answer, timeout_seconds=10)
        finally:
            client.close()
    return found


def stable_of(zone: Json) -> list[list[int]]:
    """Return the stable assignment."""
    text = zone["status"]["assignments"]["stable"]["replicas"]
    return [[int(node) for node in nodes.split(",")] for nodes in text.split(";")]


async def make_zone(
    cluster: TestCluster,
    api: KubeApi,
    namespace: str,
    name: str,
    nodes: Iterable[str],
    *,
    seconds: float = DEADLINE_SECONDS,
    **changes: Any,
) -> Json:
    """Apply a zone on these Kubernetes nodes and wait until it is Ready."""
    cluster.label(namespace, name, *nodes)
    cluster.apply(zone_manifest(namespace, name, **changes))
    return await until_zone(api, namespace, name, is_ready, seconds=seconds)


async def remove_zone(api: KubeApi, namespace: str, name: str) -> None:
    """Delete a zone and what a person may have applied for it."""
    for plural in ("regionmigrations", "rebalancetasks"):
        path = path_of(namespace, plural)
        for item in (await api.get(path))["items"]:
            if item["spec"]["zoneName"] == name:
                await api.delete(f"{path}/{item['metadata']['name']}")
    path = path_of(namespace, "distributionzones")
    await api.delete(f"{path}/{name}")
    await until(api, path, name, lambda found: not found)


class Writer:
    """Writes one batch after the other until it is stopped, and knows what was acknowledged.

    A write whose outcome is unknown may stand or not: its key's value is then either one.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self.acked: dict[bytes, bytes] = {}
        self.count = 0
        self.longest_seconds = 0.0
        self.errors: list[str] = []
        self._maybe: dict[bytes, set[bytes]] = defaultdict(set)
        self._client = TableClient(
            sorted(addresses),
            settings=ClientSettings(timeout_seconds=60.0),
        )
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> Self:
        """Begin to write."""
        self._thread.start()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """End after the write under way; of a test that has failed, nothing is left to check."""
        self._stop.set()
        self._thread.join(90)
        if failed is not None:
            self._client.close()
        assert not self._thread.is_alive(), "the writer hangs"

    def wait_for_more(self, batches: int = 2, seconds: float = 60.0) -> None:
        """Wait until so many more batches were acknowledged."""
        with self._progress:
            wanted = self.count + batches
            assert self._progress.wait_for(lambda: self.count >= wanted, seconds), (
                f"no write was acknowledged within {seconds} s: {self.errors[-3:]}"
            )

    def check(self) -> None:
        """Read everything back and compare it with what was promised; then close."""
        try:
            keys = pa.record_batch([pa.array(list(self.acked), pa.binary())], names=["key"])
            table = self._client.read(keys)
        finally:
            self._client.close()
        found = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        wrong = {
            key: (found.get(key), value)
            for key, value in self.acked.items()
            if found.get(key) != value and found.get(key) not in self._maybe[key]
        }
        assert not wrong, f"acknowledged rows are lost: {wrong}"
        assert not self.errors, self.errors

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(WRITE_PAUSE_SECONDS):
            number += 1
            rows = {
                f"key-{(number * 8 + i) % 200}".encode(): f"{number}".encode() for i in range(8)
            }
            batch = pa.record_batch(
                [pa.array(list(rows), pa.binary()), pa.array(list(rows.values()), pa.binary())],
                schema=SCHEMA,
            )
            begun = time.monotonic()
            try:
                self._client.write(batch)
            except OutcomeUnknownError:
                for key, value in rows.items():
                    self._maybe[key].add(value)
                continue
            except RezoneError as error:
                self.errors.append(repr(error))
                continue
            with self._progress:
                self.acked.update(rows)
                for key in rows:
                    self._maybe.pop(key, None)
                self.count += 1
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - begun)
                self._progress.notify_all()


async def check_settled(
    api: KubeApi, namespace: str, name: str, *, seconds: float = DEADLINE_SECONDS
) -> Json:
    """Wait until the zone is Ready and nothing is left of any move; say what is, if it stays.

    The status may be a moment behind a data node that has just died: then it is looked at again.
    """

    def quiet(zone: Json) -> bool:
        status = zone.get("status") or {}
        return is_ready(zone) and not status.get("currentTask")

    deadline = time.monotonic() + seconds
    while True:
        zone = await until_zone(api, namespace, name, quiet, seconds=seconds)
        left = await _left_over(api, namespace, name, zone)
        if not left:
            return zone
        assert time.monotonic() < deadline, left
        await asyncio.to_thread(wait_for_report, addresses_of(zone).values())


async def _left_over(api: KubeApi, namespace: str, name: str, zone: Json) -> list[str]:
    routes = await records_of(api, namespace, name)
    try:
        reports = await asyncio.to_thread(reports_of, addresses_of(zone))
    except RezoneError as error:
        return [str(error)]
    held = {partition for replicas in reports.values() for partition in replicas}
    left = [f"partition {partition} is held without a record" for partition in held - set(routes)]
    for partition, record in routes.items():
        holders = {node for node, replicas in reports.items() if partition in replicas}
        if holders != set(record.replicas):
            left.append(f"partition {partition} is held by {holders}: {record}")
        if set(record.isr) != set(record.replicas) or record.next_leader is not None:
            left.append(f"partition {partition} is not at rest: {record}")
        leads = reports.get(record.leader, {}).get(partition)
        # Who is to lead knows it: without an operator nobody would tell it any more.
        if leads is None or (leads.role, leads.leader_epoch) != (Role.LEADER, record.leader_epoch):
            left.append(f"partition {partition} is not led as recorded: {record}, {leads}")
    labels = f"rezone.dev/zone={name},app.kubernetes.io/component=data-node"
    pods = await api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=labels)
    found = {pod["metadata"]["name"] for pod in pods["items"]}
    if found != {node["podName"] for node in zone["status"]["dataNodes"]}:
        left.append(f"pods: {found}")
    if zone["status"]["assignments"].get("pending"):
        left.append("an assignment is pending")
    migrations = (await api.get(path_of(namespace, "regionmigrations")))["items"]
    left += [
        f"migration {item['metadata']['name']} is in {state_of(item)}"
        for item in migrations
        if item["spec"]["zoneName"] == name and state_of(item) not in TERMINAL_MIGRATIONS
    ]
    return left


def wait_for_report(addresses: Iterable[str]) -> None:
    """Wait for the next report of any data node that answers, at most half a second."""
    for address in addresses:
        client = NodeClient(address)
        try:
            now = with_answer(None, client.call(ReportRequest(), NodeReport))
            client.call(request_after(now, timeout_ms=500), NodeReport)
        except RezoneError:
            continue
        else:
            return
        finally:
            client.close()


def open_connections() -> set[Any]:
    """Return the connections of the running loop."""
    return set(asyncio.get_running_loop()._transports.values())  # type: ignore[attr-defined]


async def abort_connections(foreign: set[Any]) -> None:
    """Close all connections but these at once.

    TLS connections say goodbye and wait for the answer when they are closed; a loop that ends
    before it came leaves sockets behind, which is a warning, which is an error.
    """
    for transport in open_connections() - foreign:
        transport.abort()
    for _ in range(3):
        await asyncio.sleep(0)
