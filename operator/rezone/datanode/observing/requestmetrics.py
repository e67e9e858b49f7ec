"""Metrics of what clients ask for: rate, errors and duration (OB-01)."""

import itertools
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.datanode.node.node import DataNode
from rezone.datanode.scheduling.requests import BOUNDS_SECONDS

_NAMES = [*map(str, BOUNDS_SECONDS), "+Inf"]


class RequestCollector(Collector):
    """Every operation and every result is there from the start: rates begin at zero."""

    def __init__(self, node: DataNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics' present values."""
        requests = CounterMetricFamily(
            "rezone_data_node_requests",
            "Requests of clients that have ended, by operation and result.",
            labels=["operation", "result"],
        )
        durations = HistogramMetricFamily(
            "rezone_data_node_request_seconds",
            "How long requests with the result ok took; of streams, the time their rows took.",
            labels=["operation"],
        )
        for operation, counts in self._node.foreground.requests.items():
            for result, count in counts.results.items():
                requests.add_metric([operation, result], count)
            totals = map(float, itertools.accumulate(counts.buckets))
            durations.add_metric(
                [operation], list(zip(_NAMES, totals, strict=True)), sum_value=counts.seconds
            )
        yield requests
        yield durations
