"""Metrics of a re-sharding at a node: what its new partitions pull, and which old ones ended."""

import collections
import enum
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.node.node import DataNode
from rezone.wire.messages import ReshardProgress


class ReshardPhase(enum.StrEnum):
    """How far the reshard stream of a range is: the range that an old and a new partition share."""

    BACKFILLING = "Backfilling"  # rows that were there before are still to come
    FOLLOWING = "Following"  # it has them, and pulls what is written since
    SERVING = "Serving"  # the old partition's seal is pulled: the new one serves it
    BROKEN = "Broken"  # the old partition's log does not lead on from where it stands


def phase_of(progress: ReshardProgress) -> ReshardPhase:
    """Return how far a reshard stream is."""
    if progress.sealed:
        return ReshardPhase.SERVING
    if progress.broken:
        return ReshardPhase.BROKEN
    return ReshardPhase.FOLLOWING if progress.backfilled else ReshardPhase.BACKFILLING


class ReshardCollector(Collector):
    """Of the new partitions that this node leads, but for the seals, which are of all replicas."""

    def __init__(self, node: DataNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        partitions = self._node.partitions()
        found: list[ReshardProgress] = []
        for partition in partitions:
            found += partition.reshard_streams.progress()
        phases = collections.Counter(map(phase_of, found))
        ranges = GaugeMetricFamily(
            "rezone_data_node_reshard_ranges",
            "Ranges of new partitions led here, each with one source, by how far they are.",
            labels=["phase"],
        )
        for phase in ReshardPhase:
            ranges.add_metric([phase], phases[phase])
        yield ranges
        yield GaugeMetricFamily(
            "rezone_data_node_reshard_lag_rows",
            "Rows of a source's log not pulled yet, of the range that lacks most.",
            max((progress.lag_rows or 0 for progress in found), default=0),
        )
        yield GaugeMetricFamily(
            "rezone_data_node_reshard_backfilled_rows",
            "Row versions that backfills have brought to these ranges.",
            sum(progress.rows for progress in found),
        )
        yield CounterMetricFamily(
            "rezone_data_node_reshard_fetched_bytes",
            "Bytes that this node has fetched to backfill new partitions.",
            self._node.reshard_pulls.fetched_bytes,
        )
        yield GaugeMetricFamily(
            "rezone_data_node_sealed_partitions",
            "Replicas of old partitions whose log has ended: they have been cut over.",
            sum(partition.store.seal is not None for partition in partitions),
        )
