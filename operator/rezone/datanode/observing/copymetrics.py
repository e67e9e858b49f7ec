"""Metrics of what copies and moves cost a node, and whom they slow (SS-07, B-16)."""

import collections
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.node.node import DataNode
from rezone.wire.messages import CopyFailure


class CopyCollector(Collector):
    """Sums over the node's partitions; a counter falls when a replica leaves, as at a restart."""

    def __init__(self, node: DataNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        partitions = self._node.partitions()
        stores = [partition.store for partition in partitions]
        yield GaugeMetricFamily(
            "rezone_data_node_snapshots",
            "Snapshots that are read, as rows or as files.",
            sum(store.outgoing.readers for store in stores),
        )
        yield GaugeMetricFamily(
            "rezone_data_node_snapshot_memory_bytes",
            "Overwritten row ids, early rows and queues of snapshots that are read.",
            sum(store.outgoing.memory_bytes() for store in stores),
        )
        yield GaugeMetricFamily(
            "rezone_data_node_snapshot_pinned_bytes",
            "Disk room of files that only file snapshots still hold.",
            sum(store.outgoing.pinned_bytes() for store in stores),
        )
        yield CounterMetricFamily(
            "rezone_data_node_snapshot_waited_seconds",
            "Time that writes have waited because a snapshot's memory was at its limit.",
            sum(store.outgoing.waited_seconds for store in stores),
        )
        yield CounterMetricFamily(
            "rezone_data_node_copy_throttled_seconds",
            "Time that copies were throttled while clients were served, summed over copies.",
            self._node.foreground.rested_seconds,
        )
        yield GaugeMetricFamily(
            "rezone_data_node_foreground_utilization_ratio",
            "For how much of the time clients were served lately, which is what throttles copies.",
            self._node.foreground.served_share,
        )
        yield self._failing_copies()
        yield GaugeMetricFamily(
            "rezone_data_node_write_throttled_partitions",
            "Partitions whose writers are slowed for a replica that catches up.",
            sum(partition.pacer.rows_per_second is not None for partition in partitions),
        )
        yield GaugeMetricFamily(
            "rezone_data_node_write_throttled_bytes",
            "Writes that wait for a replica to catch up.",
            sum(partition.pacer.waiting_bytes for partition in partitions),
        )
        yield CounterMetricFamily(
            "rezone_data_node_write_throttled_seconds",
            "Time that writes have waited for a replica to catch up, summed over writes.",
            sum(partition.pacer.waited_seconds for partition in partitions),
        )

    def _failing_copies(self) -> Metric:
        """Count the replicas that need a copy whose last attempt has failed, by kind."""
        counts = collections.Counter(
            partition.copy_progress.failure
            for partition in self._node.partitions()
            if partition.copy_progress is not None and partition.store.meta.needs_snapshot
        )
        family = GaugeMetricFamily(
            "rezone_data_node_failing_copies",
            "Replicas that need a copy whose last attempt has failed, by what failed.",
            labels=["failure"],
        )
        for failure in CopyFailure:
            family.add_metric([failure], counts[failure])
        return family
