"""How late the node's own thread gets to run: what every other thread of the process waits for.

A call that holds Python's lock, or a machine without a free core, delays all serving threads
alike. The ticking thread knows when it wanted to run, so how late it is tells.

Concurrency: one thread notes; any may read, and may find a delay in the sum but not yet counted.
"""

import bisect
from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

BOUNDS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
"""2 ms is what no call on the serving path may hold Python's lock for."""


class Lag(Collector):
    """A histogram of delays, in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._sum = 0.0

    def note(self, seconds: float) -> None:
        """Count one delay; waking too early is none."""
        late = max(0.0, seconds)
        self._sum += late
        self._counts[bisect.bisect_left(BOUNDS_SECONDS, late)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        buckets = []
        total = 0
        names = [*map(str, BOUNDS_SECONDS), "+Inf"]
        for name, count in zip(names, list(self._counts), strict=True):
            total += count
            buckets.append((name, float(total)))
        yield HistogramMetricFamily(
            "rezone_data_node_loop_lag_seconds",
            "How late the node's own thread came to run: Python's lock was held, or no core free.",
            buckets=buckets,
            sum_value=self._sum,
        )
