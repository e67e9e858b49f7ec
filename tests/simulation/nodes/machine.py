"""The machines of a zone's data nodes: a disk each, what is known to be on it, and its ends."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, Self

from rezone.storage.upkeep.quarantine import is_replica
from rezone.wire.messages import NodeId, PartitionId
from simulation.nodes.disk import Content, Disks, MachineDiedError, TrackedDisk, memory_directory
from simulation.nodes.held import Held, Histories, History
from simulation.nodes.node import SimulatedNode

if TYPE_CHECKING:
    from simulation.loop import VirtualLoop
    from simulation.nodes.network import Network

PARTITIONS = "partitions"


class End(enum.Enum):
    """How a node ends: in order, its process killed, or its machine with it."""

    ORDERLY = enum.auto()
    KILLED = enum.auto()
    CRASHED = enum.auto()


@dataclasses.dataclass
class Machine:
    """A data node's disk, under one pod after the other, and what its replicas hold."""

    node: NodeId
    disk: TrackedDisk
    held: dict[PartitionId, Held] = dataclasses.field(default_factory=dict)

    def runs(self, node: SimulatedNode | None) -> bool:
        """Return whether a node is this machine's."""
        return node is not None and node.machine is self.disk


class Remains(NamedTuple):
    """What is left of a machine when its world ends: files, and the rows that they are made of."""

    node: NodeId
    content: Content
    histories: dict[PartitionId, History]


class Machines:
    """All machines of a run, to be used as a context; `histories` are those of a partition."""

    def __init__(
        self, loop: VirtualLoop, seed: int, histories: Callable[[PartitionId], Histories]
    ) -> None:
        self._loop = loop
        # Of its own: what is left of a disk must not change what happens to it.
        self._rng = random.Random(f"machines {seed}")
        self._histories = histories
        self._exits = contextlib.ExitStack()
        self._disks: Disks
        self._count = 0

    def __enter__(self) -> Self:
        """Have a place for disks."""
        root = self._exits.enter_context(TemporaryDirectory(dir=memory_directory()))
        self._disks = Disks(Path(root), [], self._rng)
        self._exits.enter_context(self._disks.tracked())
        return self

    def __exit__(self, *_: object) -> None:
        """Remove all disks."""
        self._exits.close()

    def make(self, node: NodeId) -> Machine:
        """Return a new machine with an empty disk."""
        self._count += 1
        return Machine(node, self._disks.add(f"machine-{self._count}"))

    def remove(self, machine: Machine) -> None:
        """Take a machine away with its disk."""
        self._disks.remove(machine.disk)

    def restore(self, remains: Remains) -> Machine:
        """Return a machine as an earlier world has left it."""
        machine = self.make(remains.node)
        machine.disk.fill(remains.content)
        for partition, history in remains.histories.items():
            machine.held[partition] = self.new_held(partition)
            machine.held[partition].rows = list(history)
        self._look(machine)
        return machine

    def remains(self, machine: Machine) -> Remains:
        """Return what is left of a machine whose node has ended."""
        histories = {partition: list(held.rows) for partition, held in machine.held.items()}
        return Remains(machine.node, machine.disk.content(), histories)

    def start(self, machine: Machine, place: str, network: Network) -> SimulatedNode:
        """Start a machine's node; MachineDiedError when it dies in that."""
        return SimulatedNode(
            machine.node,
            machine.disk,
            place,
            network,
            clock=self._loop,
            rng=random.Random(self._rng.getrandbits(64)),
        )

    def end(self, machine: Machine, node: SimulatedNode, end: End) -> None:
        """End a machine's node."""
        try:
            if end is End.ORDERLY:
                node.stop()
            else:
                node.kill(machine_dies=end is End.CRASHED)
        except MachineDiedError:
            node.kill(machine_dies=True)  # in one of its last syncs
        self._look(machine)

    def crash(self, machine: Machine) -> None:
        """End a machine without a node."""
        machine.disk.crash()
        self._look(machine)

    def pick(self, *ends: End) -> End:
        """Return one of several ends."""
        return self._rng.choice(ends)

    def held(self, machine: Machine, partition: PartitionId) -> Held:
        """Return what is known of a replica that is on a machine."""
        found = machine.held.get(partition)
        if found is None:
            found = machine.held[partition] = self.new_held(partition)
        return found

    def new_held(self, partition: PartitionId) -> Held:
        """Return what is known of a replica that nothing is known of."""
        return Held(self._histories(partition))

    def _look(self, machine: Machine) -> None:
        """Look at what is on a disk that nobody uses."""
        directories = {
            int(directory.name): directory
            for directory in (machine.disk.root / PARTITIONS).glob("[0-9]*")
            if directory.name.isdecimal() and is_replica(directory)
        }
        for partition in machine.held.keys() - directories.keys():
            del machine.held[partition]
        for partition, directory in sorted(directories.items()):
            self.held(machine, partition).left_in(directory)
