"""Everything together: objects, pods, nodes, the operator's lives, writers, faults and checks."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
import structlog

from rezone.controller.nodes import monitor
from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.kube.api.kinds import MigrationKind, Node, TaskKind, ZoneKind
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeStatus
from rezone.storage.log.entry import OP_DELETE, OP_UPSERT, rows_batch
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    PartitionId,
    Role,
    WriteRequest,
    WriteResult,
)
from simulation.cluster.apiserver import ApiFault, ApiServer, Key
from simulation.cluster.checks import Checks, unfinished
from simulation.cluster.kubelet import NAMESPACE, Kubelet, SparkOperator
from simulation.cluster.process import API_SECONDS, Process, SimulatedClient
from simulation.loop import VirtualLoop
from simulation.nodes.disk import MachineDiedError
from simulation.nodes.machine import Machines, Remains
from simulation.nodes.network import Network

ZONE = "z"
STEP_SECONDS = 0.05
QUIET_STEPS = 60
QUIET_STEP_SECONDS = 0.5
WRITE_SECONDS = 0.25
ELECTION_SECONDS = 1.0
REST_SECONDS = 1.0
KEYS = 5
"""So many rows of each partition are written to, one after the other."""

TRACED = 40


class SimulationError(AssertionError):
    """Raised when a run breaks a promise; the text says how to repeat it."""


@dataclasses.dataclass(frozen=True)
class Image:
    """A world at rest, from which others begin: all that is not in a process's memory."""

    time: float
    revision: int
    objects: dict[Key, bytes]
    machines: dict[str, Remains]
    places: dict[str, str]
    epoch: int


@dataclasses.dataclass(frozen=True)
class Order:
    """Something a person, or fate, does once a moment has come."""

    when: Callable[[World], bool]
    what: Callable[[World], object]


class World:
    """One run. What it is made of may be of other kinds in subclasses."""

    checks_kind = Checks
    machines_kind = Machines

    def __init__(self, seed: int = 0, image: Image | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        self.server = ApiServer(self.loop)
        self.network = Network(self.loop)
        self.checks = self.checks_kind(self)
        self.machines = self.machines_kind(self.loop, seed, self.checks.histories)
        self.kubelet = Kubelet(self.loop, self.server, self.network, self.machines)
        self.spark = SparkOperator(self.loop, self.server, self.network)
        self.processes: list[Process] = []
        self.epoch = 0
        self.passes = 0
        self.points = 0
        self.crash_points: frozenset[int] = frozenset()
        self.crash_chance = 0.0
        self.at_point: dict[int, Callable[[World], object]] = {}
        self.write_faults: list[ApiFault] = []
        self.write_fault_chance = 0.0
        self.read_fault_chance = 0.0
        self.jitter = 0.0
        self.trace: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.bugs: list[str] = []
        self.orders: list[Order] = []
        self.each_step: Callable[[World], object] = lambda _: None
        self.acknowledged: Callable[[PartitionId], object] = lambda _: None
        self.delete_chance = 0.0
        self._zone: tuple[bytes, DistributionZone] | None = None
        self._written = 0
        self._write_at = 0.0
        self._quiet = 0
        self._last: tuple[int, int] = (0, 0)
        self._image = image
        self._rest_since: float | None = None
        self._patches = contextlib.ExitStack()
        self.loop.set_exception_handler(lambda _, context: self._lost_error(context))
        self._wire()

    def __enter__(self) -> Self:
        """Begin: the controller lives by this world's clock until the end of the block."""
        self._patches.enter_context(_simulated(self.loop))
        self._patches.enter_context(self.machines)
        if self._image is not None:
            self._load(self._image)
        return self

    def __exit__(self, *_: object) -> None:
        """End everything that still waits in the loop."""
        for process in self.processes:
            self.loop.run_until_complete(process.close())
        self.loop.close()
        self._patches.close()

    def _wire(self) -> None:
        self.server.checks.append(self.checks.stored)
        self.server.listeners += [self.kubelet.changed, self.spark.changed, self._changed]
        self.network.after_call = self.disturbed
        self.network.dropped = self.checks.dropped
        self.network.died = self.bury

    def _load(self, image: Image) -> None:
        self.loop.advance(image.time)
        self.server.objects = dict(image.objects)
        self.server.revision = image.revision
        self.epoch = image.epoch
        for key in self.server.objects:
            self.checks.stored(key, None, self.server.read(key))
        for uid, remains in image.machines.items():
            self.kubelet.adopt(uid, remains, image.places[uid])

    def image(self) -> Image:
        """End all nodes, in order, and return what outlives them."""
        return Image(
            self.loop.time(),
            self.server.revision,
            dict(self.server.objects),
            self.kubelet.remains(),
            self.kubelet.places(),
            self.epoch,
        )

    # --- what is asked of it -----------------------------------------------------------------

    def add_kube_nodes(self, count: int) -> None:
        """Add Kubernetes nodes."""
        for number in range(count):
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            body = {"metadata": {"name": f"worker-{number}"}, "spec": {}, "status": ready}
            self.server.create(Node, body)

    def apply_zone(self, **spec: Any) -> None:
        """Apply the zone."""
        meta = {"name": ZONE, "namespace": NAMESPACE}
        body = {"apiVersion": "rezone.dev/v1alpha1", "kind": "DistributionZone"}
        made = self.server.create(ZoneKind, {**body, "metadata": meta, "spec": spec})
        if self.checks.zone_uid:
            self.checks.begin_again(made["metadata"]["uid"])

    def delete_zone(self) -> dict[str, Any]:
        """Delete the zone and return its spec; what is left of it does not count any more."""
        found = self.server.find(ZoneKind, NAMESPACE, ZONE)
        assert found is not None
        self.server.delete(ZoneKind, NAMESPACE, ZONE)
        self.checks.begin_again("deleted")
        spec: dict[str, Any] = found["spec"]
        return spec

    def patch_zone(self, **spec: Any) -> None:
        """Change the zone's spec."""
        self.server.merge(ZoneKind, NAMESPACE, ZONE, {"spec": spec})

    def apply_task(self, name: str, **spec: Any) -> None:
        """Apply a RebalanceTask."""
        self._apply(TaskKind, "RebalanceTask", name, spec)

    def apply_migration(self, name: str, **spec: Any) -> None:
        """Apply a RegionMigration."""
        self._apply(MigrationKind, "RegionMigration", name, spec)

    def _apply(self, kind: Any, word: str, name: str, spec: dict[str, Any]) -> None:
        meta = {"name": name, "namespace": NAMESPACE}
        spec = {"zoneName": ZONE, "oldLeaderPolicy": "Retain", **spec}
        if word == "RebalanceTask":
            spec = {"type": "Zone", **{k: v for k, v in spec.items() if k != "oldLeaderPolicy"}}
        body = {"apiVersion": "rezone.dev/v1alpha1", "kind": word, "metadata": meta, "spec": spec}
        self.server.create(kind, body)

    def cancel(self, kind: str, name: str) -> None:
        """Cancel a task or migration by its spec."""
        word = {"RebalanceTask": TaskKind, "RegionMigration": MigrationKind}[kind]
        self.server.merge(word, NAMESPACE, name, {"spec": {"cancel": True}})

    # --- what can be seen of it --------------------------------------------------------------

    def zone(self) -> DistributionZone:
        """Return the zone."""
        key = Key("DistributionZone", NAMESPACE, ZONE)
        stored = self.server.objects[key]
        # It is asked for several times a step, and seldom a new one.
        if self._zone is None or self._zone[0] is not stored:
            self._zone = (stored, DistributionZone.parse(self.server.read(key)))
        return self._zone[1]

    @property
    def is_gone(self) -> bool:
        """Whether there is no zone: it was deleted, or is not made yet."""
        return self.server.find(ZoneKind, NAMESPACE, ZONE) is None

    def data_nodes(self) -> tuple[DataNodeStatus, ...]:
        """Return the zone's data nodes."""
        status = self.zone().status
        return status.data_nodes if status is not None else ()

    def states(self, kind: str) -> dict[str, str]:
        """Return the states of all tasks or migrations."""
        found = self.server.all_of(kind)
        return {o["metadata"]["name"]: (o.get("status") or {}).get("state", "") for o in found}

    # --- the operator ------------------------------------------------------------------------

    def elect(self) -> Process:
        """Start an operator with the next epoch."""
        self.epoch += 1
        process = Process(self, self.epoch)
        self.processes.append(process)
        self._note(f"operator {self.epoch} begins")
        process.start()
        return process

    def died(self, process: Process) -> None:
        """Elect another one, after its Lease has run out."""
        self.strikes("operator dies", f"operator {process.epoch} dies")
        self.loop.create_task(process.close())
        if process is self.processes[-1]:
            self.loop.call_later(ELECTION_SECONDS, self.elect)

    def crash(self) -> None:
        """Kill the operator that leads."""
        self.processes[-1].die()

    def split(self, seconds: float) -> None:
        """Let another operator lead while the old one has not noticed for a while."""
        old = self.processes[-1]
        if not old.dead:
            self.strikes("split", f"operator {old.epoch} is frozen out")
            self.elect()
            self.loop.call_later(seconds, old.die)

    def crashes_at(self, label: str) -> bool:
        """Count a crash point; returns whether the operator dies at it."""
        self.points += 1
        self._note(f"{self.points} {label}")
        what = self.at_point.pop(self.points, None)
        if what is not None:
            self.loop.call_soon(what, self)
        if self.points in self.crash_points:
            return True
        return self.crash_chance > 0 and self.rng.random() < self.crash_chance

    def api_seconds(self) -> float:
        """Return how long a request travels."""
        return API_SECONDS * (1 + self.jitter * self.rng.random()) if self.jitter else API_SECONDS

    def write_fault(self) -> ApiFault | None:
        """Return what the next write to the API server meets."""
        if self.write_faults:
            return self.write_faults.pop(0)
        if self.write_fault_chance and self.rng.random() < self.write_fault_chance:
            self.counts["write fault"] += 1
            return self.rng.choice(list(ApiFault))
        return None

    def read_fault(self) -> ApiFault | None:
        """Return what the next read meets."""
        if not self.read_fault_chance:
            return None
        failed = self.rng.random() < self.read_fault_chance
        self.counts["read fault"] += failed
        return ApiFault.ERROR if failed else None

    def _changed(self, key: Key, manifest: dict[str, Any]) -> None:
        for process in self.processes:
            process.changed(key, manifest)

    # --- the run -----------------------------------------------------------------------------

    def bug(self, where: str, error: BaseException) -> None:
        """Note an error that is nobody's fault but the program's."""
        self.bugs.append(f"{where}: {error!r}")

    def _lost_error(self, context: dict[str, Any]) -> None:
        """Note an error that nobody took."""
        error = context.get("exception")
        if error is not None:
            self.bug(context["message"], error)

    def disturbed(self) -> None:
        """Look closely again: something has happened."""
        self._quiet = 0

    def run(self, seconds_max: float, done: Callable[[World], list[str]] = unfinished) -> None:
        """Run until nothing is left to do. SimulationError says what was broken, or is left."""
        try:
            self.loop.run_until_complete(self._run(seconds_max, done))
        except AssertionError as error:
            raise SimulationError(f"{error}\n{self.story()}") from error

    async def _run(self, seconds_max: float, done: Callable[[World], list[str]]) -> None:
        if not self.processes or self.processes[-1].dead:
            self.elect()
        end = self.loop.time() + seconds_max
        while self.loop.time() < end:
            self._step()
            if self._at_rest(done):
                return
            future = self.loop.create_future()
            self.loop.call_later(self._pace(), future.set_result, None)
            await future
        left = [o for o in ["orders are left"] if self.orders] + done(self)
        raise AssertionError(f"not at rest after {seconds_max} s: {left}")

    def _at_rest(self, done: Callable[[World], list[str]]) -> bool:
        """Return whether nothing has been left to do for a while."""
        now = self.loop.time()
        alive = [p for p in self.processes if not p.dead]
        # While something moves it is not worth the time to look closer.
        if self.orders or not self._quiet or alive != self.processes[-1:] or done(self):
            self._rest_since = None
            return False
        self._rest_since = now if self._rest_since is None else self._rest_since
        return now - self._rest_since >= REST_SECONDS

    def _pace(self) -> float:
        seen = (self.server.revision, self.points)
        self._quiet = self._quiet + 1 if seen == self._last else 0
        self._last = seen
        return STEP_SECONDS if self._quiet < QUIET_STEPS else QUIET_STEP_SECONDS

    def _step(self) -> None:
        assert not self.bugs, self.bugs[0]
        now = self.loop.time()
        while self.orders and self.orders[0].when(self):
            self.orders.pop(0).what(self)
            self.disturbed()
        self.each_step(self)
        for node in list(self.network.nodes.values()):
            if self.network.nodes.get(node.node_id) is not node:
                continue
            with self.mortals():
                if node.node_id in self.network.hung:
                    node.stand_still(now)
                else:
                    node.step(now)
        with self.mortals():
            self.spark.step()
        if now >= self._write_at:
            self._write_at = now + WRITE_SECONDS
            self._write()
        self.checks.step()

    def _write(self) -> None:
        """Write a row to everyone who believes to lead, as clients with old routes do."""
        for partition in self.replicas():
            unable = self.network.hung | self.network.stalled
            if partition.role is Role.LEADER and partition.node_id not in unable:
                self._written += 1
                with self.mortals():
                    self._write_row(partition)

    def pause_writes(self, seconds: float) -> None:
        """Write nothing for so long."""
        self._write_at = self.loop.time() + seconds

    def replicas(self) -> Iterator[Replica]:
        """Yield the replicas that are up, but none whose machine has died since the first one."""
        for node in list(self.network.nodes.values()):
            for partition in node.partitions():
                up = self.network.nodes.get(node.node_id) is node
                if up and self.checks.is_of_zone(partition):
                    yield partition

    def _write_row(self, partition: Replica) -> None:
        number = self._written
        writer = uuid.UUID(int=number).hex
        request = WriteRequest(
            opaque=number, partition=partition.partition_id, producer_id=writer, sequence=1
        )
        start, _ = partition.hash_range
        row = start.to_bytes(8) + b"key %d" % (number % KEYS)
        deletes = self.delete_chance > 0 and self.rng.random() < self.delete_chance
        op, value = (OP_DELETE, b"") if deletes else (OP_UPSERT, b"value %d" % number)
        prepared = PreparedRows(rows_batch([row], [op], [value]), 100)

        def reply(result: object) -> None:
            if isinstance(result, WriteResult) and self.checks.is_of_zone(partition):
                self.checks.acknowledged(partition, result.end_offset)
                self.acknowledged(partition.partition_id)

        with contextlib.suppress(RezoneError):
            partition.write(request, prepared, reply)

    # --- machines that die -------------------------------------------------------------------

    @contextlib.contextmanager
    def mortals(self) -> Iterator[None]:
        """Do what a machine may die of."""
        try:
            yield
        except MachineDiedError as died:
            self.bury(died)

    def bury(self, died: MachineDiedError) -> None:
        """Take a node away whose machine has died; safe to repeat."""
        self.strikes("machine dies in a sync", str(died))
        self.disturbed()
        self.kubelet.died(died)

    def _note(self, what: str) -> None:
        self.trace.append(f"{self.loop.time():.3f} {what}")

    def note(self, what: str) -> None:
        """Write into the story."""
        self._note(what)

    def strikes(self, fault: str, what: str = "") -> None:
        """Count a fault that happens now, and write it into the story."""
        self.counts[fault] += 1
        self._note(what or fault)

    def story(self) -> str:
        """Return how to repeat the run, and its last moments."""
        points = sorted(self.crash_points)
        lines = [f"seed {self.seed}, crash points {points}", *self.trace[-TRACED:]]
        for kind in ("RebalanceTask", "RegionMigration"):
            lines += [f"{kind} {name}: {state}" for name, state in self.states(kind).items()]
        lines += [f"p{p}: {r}" for p, r in self.checks.routes.items()]
        return "\n".join(lines)


@contextlib.contextmanager
def _simulated(loop: VirtualLoop) -> Iterator[None]:
    """Give the controller the loop's clock and the simulation's clients, quietly."""
    modules = [m for name, m in sys.modules.items() if name.startswith("rezone.controller.")]
    config = structlog.get_config()
    if not os.environ.get("REZONE_SIMULATION_LOG"):
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with pytest.MonkeyPatch.context() as patched:
            for module in modules:
                if hasattr(module, "utc_now"):
                    patched.setattr(module, "utc_now", loop.now)
            patched.setattr(monitor, "NodeClient", SimulatedClient)
            yield
    finally:
        structlog.configure(**config)
