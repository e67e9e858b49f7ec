"""A simulated data node on a disk with files: real stores, journals, indexes and upkeep.

Its `Replicas` are the real ones; what is simulated is below them (`disk`, `engine`) and around the
node (`node`, `streams`).
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from at_once import AtOnce
from rezone.replica.copies import Receiver, snapshot_stream
from rezone.replica.engines.base import Engine
from rezone.replica.foreground import no_rest
from rezone.replica.index_builds import IndexBuilds
from rezone.replica.partition import Partition
from rezone.replica.replicas import Replicas
from rezone.replica.settings import Clock, NodeSettings
from rezone.replica.store_config import StoreConfig
from rezone.wire.errors import RezoneError
from rezone.wire.flight import NodeClient
from rezone.wire.messages import NodeId, PartitionId, PullSnapshot, SnapshotTicket
from simulation.disk import TrackedDisk, open_engine
from simulation.node import SimulatedNode
from simulation.storage import NodeDisk, Survives
from simulation.streams import Follower

if TYPE_CHECKING:
    from simulation.network import Network

LOG_SEGMENT_BYTES = 1024
LOG_TAIL_BYTES = 2048
FLUSH_CHANCE = 0.02
HOUSE_CHANCE = 0.05
BUILD_CHANCE = 0.15
BUILD_BYTES = 256
"""How much of an index is built in a step, and how often: replicas are at it for different times,
so that leaders have built what their candidates have not."""


class StoredReplicas(Replicas):
    """The replicas of a simulated node: each has somebody who streams to it."""

    def __init__(self, node: StoredNode, directory: Path, config: StoreConfig) -> None:
        super().__init__(node, directory, config, node.memory)
        self._node = node

    def _make(self, partition: PartitionId, *, learner: bool) -> Partition:
        opened = super()._make(partition, learner=learner)
        apply_late = functools.partial(self._apply_late, opened, opened.store.apply_to)
        opened.store.apply_to = apply_late  # type: ignore[method-assign]
        self._node.followers[partition] = Follower(self._node, opened)
        return opened

    def _apply_late(self, partition: Partition, apply: Callable[[int], int], offset: int) -> int:
        """Apply rows, as a partition's job does, when the disk and copies let it."""
        return apply(offset) if self._node.may_apply(partition) else partition.store.applied

    def drop(self, partition: Partition) -> None:
        """Stop a replica and delete its data."""
        follower = self._node.followers.pop(partition.partition_id, None)
        if follower is not None:
            follower.close()
        super().drop(partition)


class StoredPulls:
    """The copies a node makes for itself, each in one step."""

    def __init__(self, node: StoredNode) -> None:
        self._node = node
        self._asked: list[tuple[Partition, PullSnapshot]] = []

    def start(self, partition: Partition, request: PullSnapshot) -> None:
        """Copy with the next step."""
        self._asked.append((partition, request))

    def step(self) -> None:
        """Make all copies that were asked for."""
        asked, self._asked = self._asked, []
        for partition, request in asked:
            with contextlib.suppress(RezoneError):
                self._copy(partition, request)

    def _copy(self, partition: Partition, request: PullSnapshot) -> None:
        node, network = self._node, self._node.network
        source = network.id_at(request.source)
        if source is None or not network.linked(node.node_id, source):
            return
        outgoing = network.node(source).find(request.partition).store.outgoing
        reader = f"node {node.node_id}"
        ticket = SnapshotTicket(partition=request.partition, reader=reader)
        receiver = Receiver(partition, node.new_id(), no_rest)
        receiver.begin()
        for batch, metadata in snapshot_stream(outgoing.open(ticket), node.foreground):
            receiver.take(batch, metadata)


class StoredNode(SimulatedNode):
    """One life of a data node's process on a disk with files.

    `may_apply` is asked before rows are applied, and may let others go on meanwhile; only those of
    a follower may wait for another time.
    """

    def __init__(
        self,
        node_id: NodeId,
        machine: TrackedDisk,
        address: str,
        network: Network,
        *,
        clock: Clock,
        rng: random.Random,
        settings: NodeSettings | None = None,
        connect: Callable[[str], NodeClient] = NodeClient,
        may_apply: Callable[[Partition], bool] = lambda _: True,
    ) -> None:
        self.machine = machine
        self._rng = rng
        self.may_apply = may_apply
        super().__init__(
            node_id,
            NodeDisk(node_id),
            address,
            network,
            clock,  # type: ignore[arg-type]
            settings=settings,
            connect=connect,
        )

    def new_id(self) -> str:
        """Return a name that was not given before."""
        return self._rng.randbytes(8).hex()

    def _open_disk(self) -> None:
        directory = self.machine.root
        self.zone.open(directory)
        self.told.open(directory)
        self.pulls = StoredPulls(self)  # type: ignore[assignment]
        self._builds = IndexBuilds(self.partitions, lambda: self.zone.table, self.foreground)
        self.replicas = StoredReplicas(self, directory / "partitions", self.store_config())

    def store_config(self) -> StoreConfig:
        """Return what the stores have in common."""
        return StoreConfig(
            log_segment_bytes=LOG_SEGMENT_BYTES,
            log_tail_bytes=LOG_TAIL_BYTES,
            clock=self.clock.monotonic,
            new_id=self.new_id,
            beside=AtOnce,
            open_engine=self._open_engine,
        )

    def _open_engine(self, _kind: object, directory: Path, _rocks: object) -> Engine:
        return open_engine(self.machine, directory)

    def step(self, now: float) -> None:
        """Do what the node's threads would, now and then what they do in the background."""
        super().step(now)
        self._builds.redefine()
        for partition in self.partitions():
            if self._rng.random() < FLUSH_CHANCE:
                partition.store.flush()
            if self._rng.random() < HOUSE_CHANCE:
                partition.upkeep.keep_house()
            if partition.index.unfinished and self._rng.random() < BUILD_CHANCE:
                partition.index.build(lambda most: min(most, BUILD_BYTES))

    def stop(self) -> None:
        """End in order."""
        for partition in self.partitions():
            partition.close()
        self.zone.save()
        self.told.close()
        self.kill()

    def _lose(self, survives: Survives) -> None:
        """Lose what was not synced, if the machine dies; else what is in memory alone."""
        self.replicas = StoredReplicas(self, self.machine.root, StoreConfig())
        if survives(2):
            self.machine.crash()
        else:
            self.machine.kill()
