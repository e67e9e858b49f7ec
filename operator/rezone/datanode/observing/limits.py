"""How full every limit of a data node is: what is about to be refused, slowed or dropped (OB-01).

A limit that each partition has is as full as at the partition that is closest to it.

Concurrency: `limits_of` only reads; numbers of one call may be some microseconds apart.
"""

import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.node.node import DataNode

_DESCRIPTORS = Path("/proc/self/fd")


class Limit(NamedTuple):
    """One limit: its name, what is in use, and how much may be; 0 is without a limit."""

    name: str
    used: float
    most: float

    @property
    def saturation(self) -> float:
        """The share in use, 0 to 1; more where a limit lets the last one pass."""
        return self.used / self.most if self.most > 0 else 0.0


def limits_of(node: DataNode) -> list[Limit]:
    """Return every limit of a node, in a fixed order."""
    return [
        *(Limit(f"memory_{part.name}", part.used, part.limit) for part in node.memory.parts(node)),
        *_of_partitions(node),
        *_of_connections(node),
        Limit("snapshots", _snapshots(node), node.settings.snapshots_max),
        _descriptors(),
        _disk(node),
    ]


def _of_partitions(node: DataNode) -> Iterator[Limit]:
    settings, partitions = node.settings, node.partitions()
    yield Limit(
        "partition_pending_writes",
        _most(partition.intake.budget.used for partition in partitions),
        settings.pending_bytes_partition_max,
    )
    yield Limit(
        "partition_throttled_writes",
        _most(partition.pacer.waiting_bytes for partition in partitions),
        settings.paced_bytes_max,
    )
    yield Limit(
        "partition_waiting_reads",
        _most(partition.reads.count for partition in partitions),
        settings.reads_held_max,
    )
    yield Limit(
        "partition_log",
        _most(partition.store.log_bytes for partition in partitions),
        settings.kept_log_bytes_max,
    )
    count = size = 0
    for partition in partitions:
        with partition.store.transactions() as table:
            count, size = max(count, table.open_count), max(size, table.open_bytes)
    yield Limit("partition_open_transactions", count, settings.transactions_open_max)
    yield Limit("partition_open_intents", size, settings.open_intents_bytes_max)


def _of_connections(node: DataNode) -> Iterator[Limit]:
    settings, producers = node.settings, node.links.producers()
    connections = node.data_channels() + len(producers)
    yield Limit("connections", connections, settings.connections_max)
    yield Limit("replication_connections", len(producers), settings.replication_connections_max)
    streams = _most(len(producer.statistics()) for producer in producers)
    yield Limit("connection_streams", streams, settings.streams_max)


def _snapshots(node: DataNode) -> int:
    return sum(partition.store.outgoing.readers for partition in node.partitions())


def _descriptors() -> Limit:
    """Return the open files and sockets of this process, and how many it may have."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in _DESCRIPTORS.iterdir()) if _DESCRIPTORS.is_dir() else 0
    return Limit("file_descriptors", used, 0 if most == resource.RLIM_INFINITY else most)


def _disk(node: DataNode) -> Limit:
    """Return what of the volume is taken; full where the node begins to give way (`space`)."""
    try:
        found = os.statvfs(node.directory)
    except OSError:
        return Limit("disk", 0, 0)  # `failed_partitions` says what is wrong with the disk
    usable = found.f_blocks - found.f_bfree + found.f_bavail
    most = usable * found.f_frsize - node.space.reserve
    return Limit("disk", (usable - found.f_bavail) * found.f_frsize, most)


def _most(numbers: Iterable[int]) -> int:
    return max(numbers, default=0)


class LimitCollector(Collector):
    """The saturation of every limit, by its name."""

    def __init__(self, node: DataNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        family = GaugeMetricFamily(
            "rezone_data_node_saturation_ratio",
            "The share of a limit that is in use: at 1 requests are refused, slowed or moved.",
            labels=["limit"],
        )
        for limit in limits_of(self._node):
            family.add_metric([limit.name], limit.saturation)
        yield family
