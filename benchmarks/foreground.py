"""What writers and readers of a node keep while one of its partitions is copied away.

    PYTHONPATH=operator python benchmarks/foreground.py [--mb 200] [--rounds 3] [--clients 1]
        [--shares 0,80] [--forms rows,files] [--per-second 0]

One partition of 1 KiB rows, its leader alone has it; each client writes ten rows and reads ten,
in turn, by random keys, as fast as it can (or `--per-second` turns). Each round measures them
alone and then while the partition is copied to another node, once for each value of
`rebalance.foregroundPercent` in `--shares`, which is changed while everything runs. Turns of all
rounds together: their rate and 99th percentiles alone -> during the copy, what share is kept,
and how fast the copy was. The copy's rate without any client is measured beside it.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
from copy_partition import discard, prepare, pulled, restart, source_zone, wait_for
from harness.traffic import Turn, traffic
from harness.zone import percentile
from replica_cluster import Coordinator

VALUE_BYTES = 1016
KEY_BYTES = 8


class Windows(NamedTuple):
    """Turns in windows without and with a copy, the windows' seconds, and the copies' seconds."""

    alone: list[Turn]
    during: list[Turn]
    alone_seconds: list[float]
    copy_seconds: list[float]


def set_share(c: Coordinator, percent: int) -> None:
    """Change the zone's setting at all nodes."""
    c.config = msgspec.structs.replace(c.config, foreground_percent=percent)
    c.configure()


def measure(c: Coordinator, turns: list[Turn], seconds: float, into: Windows) -> None:
    """Add one window without a copy and one with it."""
    prepare(c)
    begun = time.monotonic()
    threading.Event().wait(seconds)
    started = time.monotonic()
    copying = pulled(c)
    ended = time.monotonic()
    into.alone.extend(turn for turn in turns if begun < turn.at <= started)
    into.during.extend(turn for turn in turns if started < turn.at <= ended)
    into.alone_seconds.append(started - begun)
    into.copy_seconds.append(copying)
    discard(c)


def show(name: str, found: Windows, size: int) -> None:
    """Print one line."""
    alone = len(found.alone) / sum(found.alone_seconds)
    during = len(found.during) / sum(found.copy_seconds)
    cells = []
    for part in ("write", "read"):
        before = percentile([getattr(turn, part) for turn in found.alone], 0.99) * 1e3
        meanwhile = percentile([getattr(turn, part) for turn in found.during], 0.99) * 1e3
        cells.append(f"p99 {part} {before:5.1f} -> {meanwhile:5.1f} ms")
    rate = size / statistics.median(found.copy_seconds) / 1e6
    print(
        f"  {name:14} {alone:6.0f} -> {during:6.0f} turns/s, {during / alone:4.0%}; "
        f"{'; '.join(cells)}; copy {rate:5.0f} MB/s",
        flush=True,
    )


def main() -> None:
    """Measure each form of copy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", default="0,80")
    parser.add_argument("--forms", default="rows,files")
    parser.add_argument("--per-second", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window without a copy")
    given = parser.parse_args()
    size = given.mb * 10**6
    rows = size // (VALUE_BYTES + KEY_BYTES)
    directory = Path(tempfile.mkdtemp(prefix="rezone-foreground-"))
    try:
        with source_zone(directory, rows, VALUE_BYTES) as c:
            for form in given.forms.split(","):
                restart(c, form)
                alone = []
                for _ in range(given.rounds):
                    prepare(c)
                    alone.append(pulled(c))
                    discard(c)
                print(f"{form}: {size / statistics.median(alone) / 1e6:.0f} MB/s without clients")
                shares = [int(share) for share in given.shares.split(",")]
                found = {share: Windows([], [], [], []) for share in shares}
                with traffic([c.nodes[0].address], rows, VALUE_BYTES, given.per_second) as turns:
                    wait_for(turns, 100)
                    for _ in range(given.rounds):
                        for share in shares:
                            set_share(c, share)
                            measure(c, turns, given.seconds, found[share])
                for share in shares:
                    show(f"{share} % kept" if share else "not slowed", found[share], size)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
