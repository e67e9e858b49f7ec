"""Metrics of a data node's disk: how long syncs take, and the one that is under way."""

import itertools
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.node.node import DataNode
from rezone.storage.disk.sync_times import BOUNDS_SECONDS


class DiskCollector(Collector):
    """The disk's metrics of one node."""

    def __init__(self, node: DataNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        times = self._node.sync_times
        names = [*map(str, BOUNDS_SECONDS), "+Inf"]
        totals = map(float, itertools.accumulate(list(times.counts)))
        yield HistogramMetricFamily(
            "rezone_data_node_sync_seconds",
            "Syncs of logs and facts by how long they took.",
            buckets=list(zip(names, totals, strict=True)),
            sum_value=times.seconds,
        )
        yield GaugeMetricFamily(
            "rezone_data_node_sync_under_way_seconds",
            "The age of the oldest sync that has not come back.",
            times.longest_under_way(self._node.clock.monotonic()),
        )
        yield GaugeMetricFamily(
            "rezone_data_node_disk_slow",
            "Whether syncs take so long that the node compares its disk with others.",
            bool(self._node.disk_speed.slow_ms),
        )
        yield GaugeMetricFamily(
            "rezone_data_node_feed_log_bytes",
            "Log beyond its retention that named feeds have not acknowledged.",
            sum(each.upkeep.feed_log_bytes for each in self._node.partitions()),
        )
        yield self._feeds()

    def _feeds(self) -> Metric:
        family = GaugeMetricFamily(
            "rezone_data_node_feed_saturation_ratio",
            "How near a named feed is to its limits: at 1 the log is trimmed without it.",
            labels=["feed"],
        )
        shares: dict[str, float] = {}
        for replica in self._node.partitions():
            for name, share in replica.feed_shares.items():
                shares[name] = max(share, shares.get(name, 0.0))
        for name, share in sorted(shares.items()):
            family.add_metric([name], share)
        return family
