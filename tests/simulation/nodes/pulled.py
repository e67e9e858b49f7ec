"""Copies in a zone with its coordinator: the real sender and receiver, batch by batch.

Whoever carries one, the node itself or Spark: a step takes one batch from the source to the
receiver. An attempt that breaks leaves what is durable to the next one (B-05). The copy loop
between the two, and streams with several receivers, are `copies`'s.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rezone.datanode.copying.copies import Receiver, current_state, failure_of, snapshot_stream
from rezone.storage.snapshot.throttle import unthrottled
from rezone.wire.errors import ConflictError, NoSpaceError, NotReadyError, RezoneError
from rezone.wire.messages import (
    NodeId,
    PartitionId,
    PullSnapshot,
    SnapshotTicket,
)
from simulation.nodes.disk import MachineDiedError

if TYPE_CHECKING:
    from rezone.datanode.replica.replica import Replica
    from simulation.nodes.node import SimulatedNode


class Copy:
    """One attempt to bring a snapshot to a replica."""

    def __init__(self, target: SimulatedNode, partition: Replica, source: NodeId) -> None:
        self.target = target
        self.partition = partition
        self.source = source
        self.ended = False
        self._receiver = Receiver(partition, target.new_id(), unthrottled)
        self._batches: Generator[Any, None, None] | None = None

    def step(self) -> None:
        """Carry a batch."""
        if self.ended:
            return
        try:
            self._carry()
        except RezoneError as error:
            self.end()
            self._receiver.abort(str(error), failure_of(error))

    def end(self) -> None:
        """Let go of the snapshot."""
        self.ended = True
        if self._batches is not None:
            self._batches.close()

    def _carry(self) -> None:
        if not self.target.network.linked(self.target.node_id, self.source):
            raise NotReadyError(f"no connection to node {self.source}")
        if self.partition.closed:
            raise ConflictError(f"partition {self.partition.partition_id} is closed")
        self._require_room()
        if self._batches is None:
            self._batches = self._opened()
        state = self._receiver.take(*next(self._batches))
        if state is not None and state.done:
            self._spoil()
            self.end()

    def _require_room(self) -> None:
        room = self.target.machine.room
        held = sum(not p.store.meta.needs_snapshot for p in self.target.partitions())
        if room is not None and held >= room:
            raise NoSpaceError(os.strerror(errno.ENOSPC))

    def _spoil(self) -> None:
        """Make the copy a wrong one, if the disk is to spoil it."""
        machine = self.target.machine
        if machine.spoils:
            machine.spoils -= 1
            machine.spoiled.add(self.partition.partition_id)

    def _opened(self) -> Generator[Any, None, None]:
        number = self.partition.partition_id
        self._receiver.begin()
        state = current_state(self.partition)
        reader = f"node {self.target.node_id}"
        ticket = SnapshotTicket(partition=number, reader=reader, resume_after=state.resume_after)
        node = self.target.network.node(self.source)
        try:
            source = node.open_source(node.find(number), ticket)
        except MachineDiedError as died:
            self.target.network.died(died)
            raise NotReadyError(f"no connection to node {self.source}") from died
        return snapshot_stream(source, node.foreground)  # type: ignore[return-value]


class Pulls:
    """The copies a node makes for itself; a repeat joins the one under way.

    As in the real one, also when its replica is closed by now: its next step ends it, and lets go
    of the snapshot.
    """

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self.running: dict[PartitionId, Copy] = {}

    def start(self, partition: Replica, request: PullSnapshot) -> None:
        """Start unless that is under way or done."""
        running = self.running.get(partition.partition_id)
        if running is not None and not running.ended:
            return
        if not partition.store.meta.needs_snapshot:
            return
        source = self._node.network.id_at(request.source)
        if source is None:
            raise NotReadyError(f"nobody is at {request.source}")
        self.running[partition.partition_id] = Copy(self._node, partition, source)

    def step(self) -> None:
        """Carry on."""
        for copy in list(self.running.values()):
            copy.step()

    def end(self) -> None:
        """End with the process."""
        for copy in self.running.values():
            copy.end()
