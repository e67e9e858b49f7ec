"""Scans of a leader and of its follower, and what each costs those who write to the leader.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/scans.py [--mb 100] [--rounds 5]
        [--value-bytes 1016] [--per-second 200]

One partition on two nodes, which are processes of their own. A client writes ten rows and reads ten
from the leader, in turn, by random keys (`--per-second` turns, 0: as fast as it can). Each round
scans all rows through the leader (`stream`) and through the follower (`stream_any`), the turns
going on, and lets the client alone for as long. Medians of the scans' rates; turns per second and
99th percentiles of all rounds together.

All processes share the machine's cores: where these are busy, a follower's scan costs writers its
share of them, too. What it leaves alone is the leader's interpreter and its engine.
"""

import argparse
import contextlib
import functools
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.one_partition import KEY_BYTES, P, load
from harness.traffic import Turn, Window, traffic, wait_for
from replica_cluster import Coordinator, cluster

from rezone.client import TableClient

STALENESS_SECONDS = 30.0


@contextlib.contextmanager
def two_replicas(directory: Path, rows: int, value_bytes: int) -> Iterator[Coordinator]:
    """Run two nodes with all rows, of which node 0 leads."""
    with cluster(directory, 2, processes=True) as c:
        c.create(P, (0, 1))
        load(c, rows, value_bytes)
        yield c


def count(batches: Iterator[Any], rows: int) -> None:
    """Read a scan to its end; it must have all rows."""
    found = sum(batch.num_rows for batch in batches)
    if found != rows:
        raise SystemExit(f"{found} rows were scanned, not {rows}")


def rest(seconds: float) -> None:
    """Let the client alone."""
    threading.Event().wait(seconds)


def timed(scan: Callable[[], None], turns: list[Turn], into: Window) -> None:
    """Scan once, and add the turns of meanwhile to a window."""
    begun = time.monotonic()
    scan()
    into.add(turns, begun, time.monotonic())


def main() -> None:
    """Measure all three in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--value-bytes", type=int, default=1016)
    parser.add_argument("--per-second", type=float, default=200)
    given = parser.parse_args()
    rows = given.mb * 10**6 // (given.value_bytes + KEY_BYTES)
    directory = Path(tempfile.mkdtemp(prefix="rezone-scans-"))
    windows = {name: Window([], []) for name in ("alone", "leader", "follower")}
    try:
        with (
            two_replicas(directory, rows, given.value_bytes) as c,
            TableClient([node.address for node in c.nodes.values()]) as client,
            traffic([c.nodes[0].address], rows, given.value_bytes, given.per_second) as turns,
        ):
            wait_for(turns, 100)
            scans: dict[str, Callable[[], None]] = {
                "leader": lambda: count(client.stream(), rows),
                "follower": lambda: count(
                    client.stream_any(max_staleness_seconds=STALENESS_SECONDS).rows, rows
                ),
            }
            for _ in range(given.rounds):
                for name, scan in scans.items():
                    timed(scan, turns, windows[name])
                pause = windows["leader"].seconds[-1]
                timed(functools.partial(rest, pause), turns, windows["alone"])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, window in windows.items():
        rate = given.mb / statistics.median(window.seconds)
        cells = [f"p99 {part} {window.slowest(part):5.1f} ms" for part in ("write", "read")]
        scanned = f"{rate:5.0f} MB/s" if name != "alone" else " " * 10
        print(f"  {name:9} {scanned} {window.per_second:6.0f} turns/s; {'; '.join(cells)}")


if __name__ == "__main__":
    main()
