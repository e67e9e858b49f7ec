"""What a data node may hold in memory: every part has a limit, and the limits add up.

Parts that all partitions share (RocksDB's block cache and unflushed rows, logs' newest entries,
writes and answers under way) have one limit for the node, whatever the number of its partitions;
snapshots have one each and a number of them. `docs/operate/sizing.md` has the sum, and what the
process takes beside it.

Concurrency: thread-safe.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.replica.replica import Replica
from rezone.datanode.scheduling.held import HeldBytes
from rezone.datanode.settings import NodeSettings
from rezone.storage.budget import Budget, Tally
from rezone.storage.engines.rocks_settings import RocksResources, RocksSettings
from rezone.wire.errors import NotReadyError, OverloadedError

_SLOT_POLL_SECONDS = 0.05
"""How often who waits for a slot looks: snapshots end in many ways, and none tells."""

Source = TypeVar("Source")


class SnapshotSlots:
    """So many snapshots are read at a time; who comes later waits for one to end."""

    def __init__(self, limit: int, wait_seconds: float, stopping: threading.Event) -> None:
        self._limit = limit
        self._looks = max(1, round(wait_seconds / _SLOT_POLL_SECONDS))
        self._stopping = stopping
        self._lock = threading.Lock()

    def open(self, read: Callable[[], int], make: Callable[[], Source]) -> Source:
        """Make a snapshot once fewer than the limit are `read`; OverloadedError after the wait."""
        for _ in range(self._looks):
            with self._lock:
                if read() < self._limit:
                    return make()
            if self._stopping.wait(_SLOT_POLL_SECONDS):
                raise NotReadyError("the node is stopping")
        raise OverloadedError(
            f"{self._limit} snapshots are read at this node, which is the limit; retry later",
            limit=self._limit,
        )


class Part(NamedTuple):
    """One part of a node's memory: what it holds and what it may hold, in bytes."""

    name: str
    used: int
    limit: int


class MemoryUser(Protocol):
    """A node whose memory is told by part."""

    @property
    def memory(self) -> "NodeMemory":
        """What its partitions share."""
        ...

    @property
    def budget(self) -> Budget:
        """The bytes of writes that are not answered yet."""
        ...

    @property
    def waiting_reads(self) -> Budget:
        """The bytes of reads that wait."""
        ...

    @property
    def snapshot_bytes_max(self) -> int:
        """What one snapshot may hold."""
        ...

    def partitions(self) -> list[Replica]:
        """Return its open replicas."""
        ...


class NodeMemory:
    """The memory that a node's partitions share."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.rocks = RocksResources(
            block_cache_bytes=settings.block_cache_bytes,
            write_buffers_bytes=settings.write_buffers_bytes,
        )
        self.requests = HeldBytes(settings)
        self.answers = Tally(settings.answers_bytes_max)
        self.open_intents = Tally(settings.open_intents_bytes_node_max)
        # The other half is shared by partitions.
        self.ended_transactions = Tally(settings.ended_transactions_bytes_max // 2)

    def rocks_settings(self, settings: RocksSettings) -> RocksSettings:
        """Return the settings with the memory that all engines of the node share."""
        return msgspec.structs.replace(settings, resources=self.rocks)

    def share(self, partitions: Sequence[Replica]) -> None:
        """Give each partition an even part of the memory that it is to have in any case."""
        if partitions:
            tail = self._settings.log_tails_bytes_max // len(partitions)
            producers = self._settings.producers_bytes_max // len(partitions)
            ended = self._settings.ended_transactions_bytes_max // 2 // len(partitions)
            for partition in partitions:
                partition.store.limit_tail(tail)
                partition.store.limit_producers(producers)
                partition.store.limit_ended(ended)

    def parts(self, node: MemoryUser) -> list[Part]:
        """Return every part."""
        settings = self._settings
        stores = [partition.store for partition in node.partitions()]
        return [
            Part("block_cache", self.rocks.cache.get_usage(), settings.block_cache_bytes),
            Part("write_buffers", self.rocks.unflushed_bytes, settings.write_buffers_bytes),
            Part("log_tails", sum(s.tail_bytes for s in stores), settings.log_tails_bytes_max),
            Part("pending_writes", node.budget.used, settings.pending_bytes_node_max),
            Part("answers", self.answers.used, settings.answers_bytes_max),
            Part("waiting_reads", node.waiting_reads.used, settings.reads_held_bytes_max),
            Part("open_intents", self.open_intents.used, settings.open_intents_bytes_node_max),
            Part(
                "ended_transactions",
                self.ended_transactions.used,
                settings.ended_transactions_bytes_max,
            ),
            Part("producers", sum(s.producer_bytes for s in stores), settings.producers_bytes_max),
            Part(
                "snapshots",
                sum(store.outgoing.memory_bytes() for store in stores),
                settings.snapshots_max * node.snapshot_bytes_max,
            ),
        ]


class MemoryCollector(Collector):
    """Each part's bytes and limit, by name."""

    def __init__(self, node: MemoryUser) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        used = GaugeMetricFamily(
            "rezone_data_node_memory_bytes", "Memory by part.", labels=["part"]
        )
        limits = GaugeMetricFamily(
            "rezone_data_node_memory_limit_bytes", "What each part may hold.", labels=["part"]
        )
        for part in self._node.memory.parts(self._node):
            used.add_metric([part.name], part.used)
            limits.add_metric([part.name], part.limit)
        yield used
        yield limits
