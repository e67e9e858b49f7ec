"""What Kubernetes and the Spark operator do with the objects the operator makes.

A pod gets an address and a process a moment after it is made; the address is one that a pod which
is gone has had, if there is one. A pod that is deleted is told to stop, and stops when its node is
missed nowhere or its patience is over: in order, or killed. A pod's disk lives as long as the pod,
or as its claim. A
SparkApplication is submitted, runs, and carries the copies of its plan at the pace of the world's
steps.
"""

from __future__ import annotations

import collections
from typing import Any

from rezone.kube.api.kinds import Manifest
from rezone.kube.api.names import NODE_ID_LABEL
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.plan import PartitionCopy
from rezone.wire.errors import RezoneError
from rezone.wire.messages import NodeId
from simulation.cluster.apiserver import ApiServer, Key
from simulation.loop import VirtualLoop
from simulation.nodes.disk import MachineDiedError
from simulation.nodes.machine import End, Machine, Machines, Remains
from simulation.nodes.network import Network
from simulation.nodes.node import SimulatedNode
from simulation.nodes.pulled import Copy

NAMESPACE = "default"
PORT = 7400
START_SECONDS = 0.3
STOP_SECONDS = 0.4
LEAVE_SECONDS_MAX = 60.0
BROKEN = "broken"
"""The annotation of pods that never start."""
DIED_SECONDS = 2.0
SUBMIT_SECONDS = 0.5
COPY_PATIENCE_STEPS = 60


class Kubelet:
    """Runs pods."""

    def __init__(
        self, loop: VirtualLoop, server: ApiServer, network: Network, machines: Machines
    ) -> None:
        self._loop = loop
        self._server = server
        self._network = network
        self._made = machines
        self.machines: dict[str, Machine] = {}
        self.claims: dict[str, Machine] = {}
        self._claimed: dict[str, str] = {}
        self.missed: list[NodeId] = []
        self._addresses: dict[str, str] = {}
        self._free: list[str] = []
        self._kept_down: set[NodeId] = set()

    def changed(self, key: Key, manifest: Manifest) -> None:
        """React to a pod, or to the end of a claim."""
        if key.kind == "PersistentVolumeClaim" and key not in self._server.objects:
            released = self.claims.pop(key.name, None)
            if released is not None:
                self._made.remove(released)
        if key.kind != "Pod":
            return
        meta = manifest["metadata"]
        if key not in self._server.objects:
            return
        if "deletionTimestamp" in meta:
            self._leave(key, meta["uid"], self._loop.time() + LEAVE_SECONDS_MAX)
        elif meta["uid"] not in self.machines:
            self._claimed[meta["uid"]] = self._claim_uid(manifest)
            claimed = self.claims.pop(_claim(manifest), None)
            self.machines[meta["uid"]] = claimed or self._made.make(_node_id(manifest))
            self._loop.call_later(START_SECONDS, self._begin, key, meta["uid"])

    def adopt(self, uid: str, remains: Remains, address: str) -> None:
        """Take over a pod that ran in an earlier world."""
        self.machines[uid] = self._made.restore(remains)
        pod = next(p for p in self._server.all_of("Pod") if p["metadata"]["uid"] == uid)
        self._claimed[uid] = self._claim_uid(pod)
        self._addresses[uid] = address
        self._run(uid)

    def machine_of(self, node: NodeId) -> Machine | None:
        """Return the machine, or the claim without a pod, that has a node's disk."""
        return next((m for m in self.all_machines() if m.node == node), None)

    def all_machines(self) -> list[Machine]:
        """Return the machines there are, and the disks of claims without a pod."""
        return [*self.machines.values(), *self.claims.values()]

    def goes_with_its_disk(self, node: NodeId) -> bool:
        """Return whether a node's pod is being deleted, and its disk with it."""
        uid = self._uid_of(node)
        pods = [p for p in self._server.all_of("Pod") if p["metadata"]["uid"] == uid]
        return any("deletionTimestamp" in p["metadata"] and not _claim(p) for p in pods)

    def remains(self) -> dict[str, Remains]:
        """End all nodes in order, and return what is left of their machines by pod."""
        for uid in self.machines:
            self._stop(uid, End.ORDERLY)
        return {uid: self._made.remains(machine) for uid, machine in self.machines.items()}

    def places(self) -> dict[str, str]:
        """Return the addresses of pods by uid."""
        return dict(self._addresses)

    def _begin(self, key: Key, uid: str) -> None:
        pod = self._server.objects.get(key)
        if pod is None or self._server.read(key)["metadata"]["uid"] != uid:
            return
        if BROKEN in self._server.read(key)["metadata"].get("annotations", {}):
            return
        used = set(self._addresses.values())
        address = self._free.pop() if self._free else f"10.0.0.{len(used) + 1}"
        while address in used:
            address = f"10.0.0.{int(address.rpartition('.')[2]) + 1}"
        self._addresses[uid] = address
        self._run(uid)
        ready = [{"type": "Ready", "status": "True"}]
        self._server.bind(
            key,
            self._place(),
            {"phase": "Running", "podIP": address, "conditions": ready},
        )

    def _place(self) -> str:
        """Return the Kubernetes node with the fewest pods; cordoned ones get none."""
        used = collections.Counter(p["spec"].get("nodeName") for p in self._server.all_of("Pod"))
        fit: list[str] = [
            n["metadata"]["name"]
            for n in self._server.all_of("Node")
            if not n["spec"].get("unschedulable")
        ]
        return min(fit, key=lambda name: (used[name], name))

    def _leave(self, key: Key, uid: str, deadline: float) -> None:
        """Tell a node to stop, and end its pod when it has; again until then."""
        node = self._running(uid)
        if node is None or not node.is_needed or self._loop.time() >= deadline:
            self.missed += [node.node_id] if node is not None and node.is_needed else []
            self._loop.call_later(STOP_SECONDS, self._end, key, uid)
            return
        if not node.leaving:
            node.leave()
        self._loop.call_later(STOP_SECONDS / 4, self._leave, key, uid, deadline)

    def _running(self, uid: str) -> SimulatedNode | None:
        machine = self.machines.get(uid)
        node = self._network.nodes.get(machine.node) if machine is not None else None
        return node if machine is not None and machine.runs(node) else None

    def _end(self, key: Key, uid: str) -> None:
        if key not in self._server.objects or self._server.read(key)["metadata"]["uid"] != uid:
            return
        self._stop(uid, self._made.pick(End.ORDERLY, End.KILLED))
        self._free.append(self._addresses.pop(uid, "10.0.1.1"))
        machine, claim = self.machines.pop(uid), _claim(self._server.read(key))
        # One that was deleted, and perhaps made again, is gone with the last pod that has used it.
        if claim and self._claimed.pop(uid) == self._claim_uid(self._server.read(key)):
            self.claims[claim] = machine
        else:
            self._made.remove(machine)
        self._server.remove(key)

    def _claim_uid(self, pod: Manifest) -> str:
        """Return which claim a pod uses, "" for none."""
        found = self._server.find("PersistentVolumeClaim", NAMESPACE, _claim(pod))
        return found["metadata"]["uid"] if found is not None else ""

    def _run(self, uid: str) -> None:
        machine = self.machines.get(uid)
        if (
            machine is None
            or machine.node in self._network.nodes
            or machine.node in self._kept_down
        ):
            return
        place = f"{self._addresses[uid]}:{PORT}"
        try:
            started = self._made.start(machine, place, self._network)
        except MachineDiedError as died:
            self.died(died)
            return
        self._network.nodes[machine.node] = started
        self._network.nodes = dict(sorted(self._network.nodes.items()))

    def _stop(self, uid: str, end: End) -> None:
        node = self._running(uid)
        if node is not None:
            del self._network.nodes[node.node_id]
            self._made.end(self.machines[uid], node, end)

    def _uid_of(self, node: NodeId) -> str | None:
        return next((u for u, m in self.machines.items() if m.node == node), None)

    def kill(self, node: NodeId, seconds: float) -> None:
        """Kill a node's process, or its machine; the same pod starts it again after a while."""
        uid = self._uid_of(node)
        if uid is None or node not in self._network.nodes:
            return
        self._keep_down(uid, self._made.pick(End.KILLED, End.CRASHED), seconds)

    def died(self, died: MachineDiedError) -> None:
        """Have a machine that died in a sync start its pod again after a while; safe to repeat."""
        for uid, machine in self.machines.items():
            if machine.disk is died.disk and machine.disk.dies_in:
                if self._running(uid) is None:
                    self._made.crash(machine)  # it has just begun to start
                self._keep_down(uid, End.CRASHED, DIED_SECONDS)

    def _keep_down(self, uid: str, end: End, seconds: float) -> None:
        node = self.machines[uid].node
        self._kept_down.add(node)
        self._stop(uid, end)
        self._loop.call_later(seconds, self.restart, node)

    def restart(self, node: NodeId) -> None:
        """Start a node's process again."""
        self._kept_down.discard(node)
        uid = self._uid_of(node)
        if uid is not None and uid in self._addresses:
            self._run(uid)

    def wipe(self, node: NodeId) -> None:
        """Take a node's pod away with its disk, as a Kubernetes node that dies does."""
        uid = self._uid_of(node)
        for pod in self._server.all_of("Pod"):
            meta = pod["metadata"]
            if uid is not None and meta["uid"] == uid:
                self._end(Key("Pod", meta["namespace"], meta["name"]), uid)


def _claim(pod: Manifest) -> str:
    """Return the claim that a pod's data is on, "" when it is on the pod's own disk."""
    volumes = (v.get("persistentVolumeClaim") for v in pod["spec"].get("volumes") or ())
    return next((v["claimName"] for v in volumes if v), "")


def _node_id(pod: Manifest) -> NodeId:
    return int(pod["metadata"]["labels"][NODE_ID_LABEL])


class SparkOperator:
    """Runs SparkApplications."""

    def __init__(self, loop: VirtualLoop, server: ApiServer, network: Network) -> None:
        self._loop = loop
        self._server = server
        self._network = network
        self._copies: dict[str, list[Copy]] = {}
        self._plans: dict[str, tuple[Key, list[PartitionCopy], int]] = {}
        self.fail_next = 0
        self.patience_steps = COPY_PATIENCE_STEPS
        """After how many steps without an end a driver gives up."""
        self.idle: list[str] = []
        """The applications that were made with nothing to copy."""

    @property
    def running(self) -> list[str]:
        """The applications that copy."""
        return list(self._plans)

    def changed(self, key: Key, manifest: Manifest) -> None:
        """React to an application."""
        if key.kind != "SparkApplication":
            return
        uid = manifest["metadata"]["uid"]
        if key not in self._server.objects:
            self._plans.pop(uid, None)
            self._drop(uid)
        elif not manifest.get("status") and uid not in self._plans:
            arguments: list[str] = manifest["spec"]["arguments"]
            plan = copyplan.loads(arguments[arguments.index("--plan-json") + 1])
            if not plan:
                self.idle.append(key.name)
            self._plans[uid] = (key, plan, 0)
            self._loop.call_later(SUBMIT_SECONDS, self._submit, key, uid)

    def adopt(self, key: Key, manifest: Manifest) -> None:
        """Take over an application that was there in an earlier world."""
        self.changed(key, {**manifest, "status": None})

    def _submit(self, key: Key, uid: str) -> None:
        if uid not in self._plans:
            return
        self._set(key, "RUNNING")
        self._copies[uid] = []

    def _set(self, key: Key, state: str, error: str = "") -> None:
        status: dict[str, Any] = {"applicationState": {"state": state, "errorMessage": error}}
        self._server.set_status(key, status)

    def step(self) -> None:
        """Carry all copies on."""
        for uid in list(self._copies):
            key, plan, steps = self._plans[uid]
            self._plans[uid] = (key, plan, steps + 1)
            if self.fail_next:
                self.fail_next -= 1
                self._finish(uid, "FAILED", "the driver has died")
                continue
            left = [e for e in plan if not self._carry(uid, e)]
            if not left:
                self._finish(uid, "COMPLETED", "")
            elif steps > self.patience_steps:
                self._finish(uid, "FAILED", f"{len(left)} partitions are not copied")

    def _finish(self, uid: str, state: str, error: str) -> None:
        key, _, _ = self._plans.pop(uid)
        self._drop(uid)
        self._set(key, state, error)

    def _drop(self, uid: str) -> None:
        for copy in self._copies.pop(uid, ()):
            copy.end()

    def _carry(self, uid: str, entry: PartitionCopy) -> bool:
        """Return whether all receivers of a partition have it."""
        copied = [self._feed(uid, entry, t.id, t.address) for t in entry.targets]
        return all(copied)

    def _feed(self, uid: str, entry: PartitionCopy, target: NodeId, address: str) -> bool:
        node = self._network.nodes.get(target)
        if node is None or node.place != address:
            return False
        try:
            partition = node.find(entry.partition)
            partition.fencing.check_revision(entry.revision)
        except RezoneError:
            return False
        if not partition.store.meta.needs_snapshot:
            return True
        mine = [c for c in self._copies[uid] if c.partition is partition and not c.ended]
        if not mine:
            if not partition.admission.admitted:
                return False
            mine = [Copy(node, partition, entry.source_id)]
            self._copies[uid].append(mine[0])
        mine[0].step()
        return not partition.store.meta.needs_snapshot
