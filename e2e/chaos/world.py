"""The cluster that faults are made in: its processes, their addresses, and whether it is whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.chaos.history import Histories
from e2e.chaos.shim import Control, environment
from rezone.cli.demo.cluster import NAMESPACE, DemoCluster, DemoError
from rezone.cli.demo.run import MANIFESTS
from rezone.client import TableClient
from rezone.kube.api.names import NODE_ID_LABEL
from rezone.kube.nodes.data_node import claim_name
from rezone.local.agent.records import ContainerRecord, PodRecord, load_record
from rezone.local.processes import PidFile, ProcessId, spawn
from rezone.resources.migration import TERMINAL_MIGRATION_STATES
from rezone.resources.task import TERMINAL_TASK_STATES
from rezone.wire.errors import RezoneError
from rezone.wire.messages import LeaderAndIsr, PartitionId

ZONE = "chaos"
ZONE_PATH = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}/distributionzones/{ZONE}"
REPLICAS = 3
NODES = 5
PORT = 7400
CLIENTS = 3
_OPERATOR = "operator"
_DATA_NODE = "data-node"
_READY_SECONDS = 180.0
_LAST_READS_SECONDS = 180.0
_ROOT = Path(__file__).parents[2]
_CLIENT_PAUSE_SECONDS = 0.1
_STALE_SECONDS_MAX = 60.0
_AHEAD_SECONDS_MAX = 5.0
_OPERATOR_LABELS = "app.kubernetes.io/component=operator"

Json = dict[str, Any]


@dataclass(frozen=True)
class Process:
    """A pod's process as it runs now: its address, its group's leader, and its control file."""

    pod: str
    address: str
    process: ProcessId
    control: Control


@dataclass(frozen=True)
class Client:
    """A client process and the address that its connections come from."""

    address: str
    process: ProcessId


class World:
    """One zone of five data nodes on the one-machine cluster, and the clients that use it."""

    def __init__(self, cluster: DemoCluster, state: Path, shim: Path, partitions: int) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.state = state
        self._recorded = state / "histories"
        self.histories = Histories(self._recorded)
        self.transactions = state / "transactions"
        self.clients: tuple[Client, ...] = ()
        self._shim = shim
        self._controls = state / "controls"

    # --- making it ---------------------------------------------------------------------------

    async def make(self) -> None:
        """Install the operator and make the zone, both with the library preloaded."""
        for directory in (self._controls, self._recorded, self.transactions):
            directory.mkdir(parents=True, exist_ok=True)
        rendered = await self.cluster.kubectl("kustomize", str(MANIFESTS))
        objects = [each for each in yaml.safe_load_all(rendered) if each]
        for each in objects:
            if each["kind"] == "Deployment":
                container = each["spec"]["template"]["spec"]["containers"][0]
                container["env"] += self._variables()
                container["env"].append({"name": "REZONE_POD_TEMPLATE_FIELDS", "value": "*"})
        document = yaml.safe_dump_all(objects)
        await self.cluster.kubectl("apply", "--server-side", "--filename", "-", stdin=document)
        rollout = ("deployment/rezone-operator", f"--timeout={_READY_SECONDS:.0f}s")
        await self.cluster.kubectl("--namespace", NAMESPACE, "rollout", "status", *rollout)
        await self.cluster.apply(self._zone())

    def _zone(self) -> Json:
        return {
            "apiVersion": "rezone.dev/v1alpha1",
            "kind": "DistributionZone",
            "metadata": {"name": ZONE, "namespace": NAMESPACE},
            "spec": {
                "partitions": self.partitions,
                "replicas": REPLICAS,
                "minInSyncReplicas": 2,
                "schema": {
                    "columns": [
                        {"name": "id", "type": "int64", "nullable": False},
                        {"name": "value", "type": "int64"},
                    ],
                    "primaryKey": ["id"],
                },
                "dataNodes": {
                    "count": NODES,
                    "podTemplate": {
                        "spec": {"containers": [{"name": _DATA_NODE, "env": self._variables()}]}
                    },
                },
                "storage": {"volumeClaimTemplate": {"size": "1Gi"}},
            },
        }

    def _variables(self) -> list[Json]:
        """Return what the library needs to know in a pod; its name names its control file."""
        known = environment(self._shim, "", str(self._controls / "$(HOSTNAME)"))
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        return [
            {"name": name, "valueFrom": address}
            if name == "REZONE_CHAOS_ADDRESS"
            else {"name": name, "value": value}
            for name, value in known.items()
        ]

    def start_clients(self, seed: int) -> None:
        """Start the clients, each a process with an address of its own."""
        bootstrap = [f"{node.address}:{PORT}" for node in self.nodes().values()]
        self.clients = tuple(
            self._start_client(number, bootstrap, seed) for number in range(1, CLIENTS + 1)
        )

    def _start_client(self, number: int, bootstrap: list[str], seed: int) -> Client:
        address = f"127.56.0.{number}"
        words = ["--partitions", str(self.partitions), "--number", str(number)]
        words += ["--seed", str(seed), "--pause-seconds", str(_CLIENT_PAUSE_SECONDS)]
        words += ["--output", str(self._recorded / f"client-{number}.jsonl")]
        words += ["--transactions", str(self.transactions / f"transactions-{number}.jsonl")]
        process = spawn(
            [sys.executable, "-m", "e2e.chaos.client", *words]
            + [word for each in bootstrap for word in ("--bootstrap", each)],
            log=self.state / "logs" / f"client-{number}.log",
            env={
                **os.environ,
                **environment(self._shim, address, str(self._controls / f"client-{number}")),
                "PYTHONPATH": f"{_ROOT / 'operator'}:{_ROOT}",
            },
            cwd=_ROOT,
        )
        return Client(address, process)

    def stop_clients(self) -> None:
        """End the clients; each waits for what it has under way, and reads all rows once more.

        Raises DemoError for one that does not come to its end: its histories lack that.
        """
        for client in self.clients:
            client.process.signal(signal.SIGTERM)
        for number, client in enumerate(self.clients, start=1):
            if not client.process.wait(_LAST_READS_SECONDS):
                raise DemoError(f"client {number} does not end: {self.state}/logs")

    def kill(self) -> None:
        """Kill the data nodes and the operator: who starts them again may find a way on."""
        for each in (*self.nodes().values(), *self._running("rezone-operator-*", _OPERATOR)):
            each.process.signal(signal.SIGKILL)

    # --- who is where ------------------------------------------------------------------------

    def nodes(self) -> dict[int, Process]:
        """Return the data nodes that run, by id."""
        found = self._running(f"{ZONE}-*", _DATA_NODE)
        return {int(each.pod.rpartition("-")[2]): each for each in found}

    def operator(self) -> Process:
        """Return the operator's process; LookupError while none runs."""
        for each in self._running("rezone-operator-*", _OPERATOR):
            return each
        raise LookupError("the operator does not run")

    def part(self, name: str) -> ProcessId:
        """Return a process of the cluster itself, such as etcd; LookupError if it does not run."""
        process = PidFile(self.state / "cluster" / "run" / f"{name}.json").read()
        if process is None:
            raise LookupError(f"{name} does not run")
        return process

    async def volume(self, node: int) -> Path:
        """Return the directory of a data node's volume."""
        claims = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{claim_name(ZONE, node)}"
        name = (await self.cluster.api.get(claims))["spec"]["volumeName"]
        volume = await self.cluster.api.get(f"/api/v1/persistentvolumes/{name}")
        return Path(volume["spec"]["hostPath"]["path"])

    def api_port(self) -> int:
        """Return the API server's port."""
        ports = json.loads((self.state / "cluster" / "ports.json").read_text())
        return int(ports["kube-apiserver"])

    def _running(self, pods: str, container: str) -> list[Process]:
        found = []
        for path in (self.state / "cluster" / "pods").glob(f"{NAMESPACE}_{pods}"):
            record = load_record(path)
            held = record.containers.get(container) if record is not None else None
            if record is not None and held is not None:
                found += self._process(record, held)
        return found

    def _process(self, record: PodRecord, held: ContainerRecord) -> list[Process]:
        process = held.process
        if process is None or not process.alive():
            return []
        control = Control(self._controls / record.name)
        return [Process(record.name, record.address, process, control)]

    async def routes(self) -> tuple[LeaderAndIsr, ...]:
        """Return the route table."""
        return await self.cluster.routes(ZONE)

    async def records(self) -> dict[PartitionId, LeaderAndIsr]:
        """Return the route table by partition id, of both layouts while there are two."""
        return await self.cluster.records(ZONE)

    async def busiest(self) -> int:
        """Return the data node that leads most partitions; LookupError when none runs."""
        return (await self.by_leaders())[0]

    async def by_leaders(self) -> list[int]:
        """Return the data nodes that run, those that lead most first."""
        leading = Counter(record.leader for record in await self.routes())
        return sorted(self.nodes(), key=lambda node: (-leading[node], node))

    # --- whether it is whole -----------------------------------------------------------------

    async def zone(self) -> Json:
        """Return the zone's object."""
        return await self.cluster.own("distributionzones", ZONE)

    async def reasons(self) -> set[str]:
        """Return the reasons of the zone's conditions."""
        status = (await self.zone()).get("status") or {}
        return {each["reason"] for each in status.get("conditions", ())}

    async def restarts(self) -> int:
        """Return how often containers of the zone and of the operator were started again."""
        pods = [*await self._data_node_pods(), *await self.cluster.pods(_OPERATOR_LABELS)]
        held = [each for pod in pods for each in pod["status"].get("containerStatuses", ())]
        return sum(int(each["restartCount"]) for each in held)

    async def _data_node_pods(self) -> list[Json]:
        return await self.cluster.pods(f"rezone.dev/zone={ZONE},{NODE_ID_LABEL}")

    async def not_whole(self) -> list[str]:
        """Return what is not as it must be when nothing is broken; empty when all is."""
        zone = await self.zone()
        status = zone.get("status") or {}
        found = [
            f"the zone is not Ready: {each['reason']}: {each.get('message', '')}"
            for each in status.get("conditions", ())
            if each["type"] == "Ready" and each["status"] != "True"
        ]
        if not any(each["type"] == "Ready" for each in status.get("conditions", ())):
            found.append("the zone says nothing of being Ready")
        keys = status.get("assignments") or {}
        found += [f"{key} assignment" for key in ("pending", "planned", "cancel") if keys.get(key)]
        found += await self._work("rebalancetasks", TERMINAL_TASK_STATES)
        found += await self._work("regionmigrations", TERMINAL_MIGRATION_STATES)
        found += await self._replicas(zone["spec"]["partitions"])
        return found + await self._pods(zone["spec"]["dataNodes"]["count"])

    async def ask_again(self) -> None:
        """Ask once more for the partitions of the start where that was cancelled, as the zone says.

        One step a call: `spec.partitions` becomes what the zone has, and then what it had first.
        """
        zone = await self.zone()
        asked = zone["spec"]["partitions"]
        keys = (zone.get("status") or {}).get("assignments") or {}
        if asked == keys.get("cancelledPartitions") == self.partitions:
            await self._ask_for(len(await self.routes()))
        elif asked != self.partitions and not keys.get("cancelledPartitions"):
            await self._ask_for(self.partitions)

    async def _ask_for(self, partitions: int) -> None:
        await self.cluster.api.patch(ZONE_PATH, {"spec": {"partitions": partitions}})

    async def waits(self) -> list[str]:
        """Return what the operator says is not over, and what each waits for."""
        zone = await self.zone()
        conditions = (zone.get("status") or {}).get("conditions", ())
        found = [
            f"the zone's {each['type']} is {each['status']}: {each['reason']}: {each['message']}"
            for each in conditions
            if (each["type"] == "Ready") != (each["status"] == "True")
        ]
        found += await self._work("rebalancetasks", TERMINAL_TASK_STATES)
        found += await self._work("regionmigrations", TERMINAL_MIGRATION_STATES)
        return found + await self._unready()

    async def _unready(self) -> list[str]:
        """Return which containers are not ready, and why they were started again last."""
        pods = [*await self._data_node_pods(), *await self.cluster.pods(_OPERATOR_LABELS)]
        return [
            f"pod {pod['metadata']['name']} is not ready: {json.dumps(each['state'])}, "
            f"restarts {each['restartCount']}, before: {json.dumps(each.get('lastState') or {})}"
            for pod in pods
            for each in pod["status"].get("containerStatuses", ())
            if not each["ready"]
        ]

    async def tasks_under_way(self) -> list[str]:
        """Return the names of the rebalances that have not ended."""
        items = (await self.cluster.own("rebalancetasks"))["items"]
        return [
            each["metadata"]["name"]
            for each in items
            if (each.get("status") or {}).get("state", "") not in TERMINAL_TASK_STATES
        ]

    async def _work(self, plural: str, ends: frozenset[Any]) -> list[str]:
        items = (await self.cluster.own(plural))["items"]
        statuses = {each["metadata"]["name"]: each.get("status") or {} for each in items}
        return [
            f"{name} is {status.get('state', '')}: {status.get('waitingFor', '')}"
            for name, status in statuses.items()
            if status.get("state", "") not in ends
        ]

    async def _replicas(self, partitions: int) -> list[str]:
        records = await self.routes()
        found = [] if len(records) == partitions else [f"{len(records)} partitions"]
        for number, record in enumerate(records):
            if set(record.isr) != set(record.replicas) or len(record.replicas) != REPLICAS:
                found.append(f"p{number}: {list(record.isr)} of {list(record.replicas)} in sync")
            if record.next_leader is not None or record.eligible or record.sealing:
                found.append(f"p{number}: an exchange is not over: {record}")
        return found

    async def _pods(self, count: int) -> list[str]:
        found = []
        pods = await self._data_node_pods()
        if len(pods) != count:
            found.append(f"{len(pods)} data nodes, not {count}")
        for pod in [*pods, *await self.cluster.pods(_OPERATOR_LABELS)]:
            ready = [c for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"]
            if not ready or ready[0]["status"] != "True":
                found.append(f"pod {pod['metadata']['name']} is not ready")
        return found

    async def times_off(self) -> list[str]:
        """Return which partitions say a time that is not about now, and what they say.

        Whoever reads as of the present must find what is there, and know how old it is.
        """
        return await asyncio.to_thread(self._times_off)

    def _times_off(self) -> list[str]:
        found = []
        bootstrap = [f"{node.address}:{PORT}" for node in self.nodes().values()]
        with TableClient(bootstrap) as table:
            for segment in table.segments():
                try:
                    told = table.read_time(
                        max_staleness_seconds=_STALE_SECONDS_MAX, hashes=segment.hashes
                    )
                except (RezoneError, TimeoutError) as error:
                    found.append(f"p{segment.partition} says no time: {error}")
                    continue
                ahead = told.as_of / 1e6 - time.time()
                if ahead > _AHEAD_SECONDS_MAX:
                    found.append(f"p{segment.partition} is {ahead:.0f} s in the future")
        return found
