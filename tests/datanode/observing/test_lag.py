"""The metric of how late a node's threads come to run."""

import threading
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from rezone.datanode.node.node import DataNode
from rezone.datanode.scheduling.lag import Lag
from rezone.datanode.settings import NodeSettings

PATIENCE_SECONDS = 30


def test_delays_are_counted_in_their_buckets() -> None:
    """A call that holds Python's lock for long would not show."""
    lag = Lag()
    for seconds in (-0.001, 0.0004, 0.002, 0.0021, 3.0):
        lag.note(seconds)
    registry = CollectorRegistry()
    registry.register(lag)
    text = generate_latest(registry).decode()
    counts = {
        line.split('le="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if "_bucket" in line
    }
    assert counts["0.0005"] == 2
    assert counts["0.001"] == 2
    assert counts["0.002"] == 3
    assert counts["0.005"] == 4
    assert counts["1.0"] == 4
    assert counts["+Inf"] == 5
    assert "rezone_data_node_loop_lag_seconds_sum 3.0045" in text


class SlowClock:
    """A clock on which a third of a second passes with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        self.now += 1 / 3
        return self.now

    def micros(self) -> int:
        """Return the time."""
        return int(self.now * 1e6)


def test_a_node_notes_how_late_its_thread_is(tmp_path: Path) -> None:
    """The metric would stand still while clients wait."""
    node = DataNode(
        1, tmp_path, clock=SlowClock(), settings=NodeSettings(tick_interval_ms=1, stop_ms_max=1000)
    )
    noted = threading.Event()
    seen: list[float] = []

    def note(seconds: float) -> None:
        seen.append(seconds)
        noted.set()

    node.threads.lag.note = note  # type: ignore[method-assign]
    node.open()
    assert noted.wait(PATIENCE_SECONDS)
    node.close()
    assert seen[0] > 0.3
