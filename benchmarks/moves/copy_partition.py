"""One partition copied between two data nodes, beside other ways to move the same bytes.

    PYTHONPATH=operator:benchmarks python benchmarks/moves/copy_partition.py [--mb 1000]
        [--small-mb 200] [--runs 3] [--peers redis,postgres] [--only rows,files] [--shares 80,0]

Rows of 1 KiB and of 100 bytes (8 of them the key) in one partition, whose leader has all of them
and takes 100 writes a second of 10 rows meanwhile, and as many reads. MB/s: 10^6 bytes of keys
and values by the time from the order to copy until the receiver has everything durable.

- rows, files: `PullSnapshot`, the receiver copies by itself; as rows, or as the engine's files.
  Each with every value of `rebalance.foregroundTargetPercent` in `--shares`, the number behind it.
- rows, files, relayed: read and passed on by a third process, as a Spark task does.
- sendfile: the same number of bytes from one process's file to another's, with fsync.
- redis: `redis-cli --cluster reshard` of all slots to an empty node, pipeline 200, the log on
  both sides with fsync every second; the same writes meanwhile.
- postgres: the initial copy of a logical subscription, fsync on; the same writes meanwhile.

Then the foreground: writers and readers as fast as they can be, alone and while the partition is
copied away with the first of the shares; throughput and 99th percentile, before -> during. All runs
of one size happen one after another on the same disk; the figures are medians. The first copy of
each form and the first sendfile do not count: on a virtual machine the first touch of a page of
memory may take ten times as long as its next use, and whoever comes first would pay for all.
"""

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.one_partition import (
    KEY_BYTES,
    discard,
    prepare,
    pulled,
    relayed,
    restart,
    set_share,
    source_zone,
)
from harness.peers import postgres_copy, redis_reshard, sendfile_copy
from harness.traffic import ROWS_PER_TURN, Turn, traffic, wait_for
from harness.zone import percentile
from replica_cluster import Coordinator

TURNS_PER_SECOND = 100.0
FOREGROUND_SECONDS = 4.0

WAYS: tuple[tuple[str, Callable[[Coordinator], float]], ...] = (
    ("", pulled),
    (", relayed", relayed),
)


def ours(
    directory: Path,
    size: int,
    value_bytes: int,
    *,
    runs: int,
    forms: Sequence[str],
    shares: Sequence[int],
) -> dict[str, float]:
    """Measure this system; return MB/s by way, and print the foreground's figures."""
    rows = size // (value_bytes + KEY_BYTES)
    seconds: dict[str, list[float]] = {}
    with source_zone(directory, rows, value_bytes) as c:
        for form in forms:
            restart(c, form)
            with traffic([c.nodes[0].address], rows, value_bytes, TURNS_PER_SECOND) as turns:
                wait_for(turns, 20)
                prepare(c)
                pulled(c)  # does not count: see above
                discard(c)
                for _ in range(runs):
                    for share in shares:
                        set_share(c, share)
                        for name, way in WAYS:
                            prepare(c)
                            seconds.setdefault(f"{form}{name} {share}", []).append(way(c))
                            discard(c)
            set_share(c, shares[0])
        for form in forms:
            restart(c, form)
            foreground(c, rows, value_bytes, form)
    return {name: size / statistics.median(each) / 1e6 for name, each in seconds.items()}


def foreground(c: Coordinator, rows: int, value_bytes: int, form: str) -> None:
    """Print what writers and readers get, alone and during a copy."""
    prepare(c)
    with traffic([c.nodes[0].address], rows, value_bytes) as turns:
        wait_for(turns, 100)
        begun = time.monotonic()
        threading.Event().wait(FOREGROUND_SECONDS)
        started = time.monotonic()
        pulled(c)
        ended = time.monotonic()
    before = [turn for turn in turns if begun < turn.at <= started]
    during = [turn for turn in turns if started < turn.at <= ended]
    discard(c)

    def figures(some: list[Turn], seconds: float) -> str:
        writes = percentile([turn.write for turn in some], 0.99) * 1e3
        reads = percentile([turn.read for turn in some], 0.99) * 1e3
        rate = len(some) * ROWS_PER_TURN / seconds
        return f"{rate:,.0f} rows/s written and read, p99 {writes:.1f} and {reads:.1f} ms"

    print(f"  foreground, {form}: {figures(before, started - begun)}")
    print(f"  {'':{12 + len(form)}} -> {figures(during, ended - started)}", flush=True)


def main() -> None:
    """Run both row sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=1000, help="of 1 KiB rows")
    parser.add_argument("--small-mb", type=int, default=200, help="of 100-byte rows")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="rows,files")
    parser.add_argument("--shares", default="80,0")
    parser.add_argument("--peers", default="redis,postgres", help="may be empty")
    given = parser.parse_args()
    for row_bytes, megabytes in ((1024, given.mb), (100, given.small_mb)):
        if not megabytes:
            continue
        size, value_bytes = megabytes * 10**6, row_bytes - KEY_BYTES
        print(f"rows of {row_bytes} bytes, {megabytes} MB, median of {given.runs}")
        directory = Path(tempfile.mkdtemp(prefix="rezone-copy-"))
        try:
            figures = ours(
                directory,
                size,
                value_bytes,
                runs=given.runs,
                forms=given.only.split(","),
                shares=[int(share) for share in given.shares.split(",")],
            )
            shutil.rmtree(directory / "node0")
            shutil.rmtree(directory / "node1")
            sends = [sendfile_copy(directory, size) for _ in range(given.runs + 1)][1:]
            figures["sendfile"] = size / statistics.median(sends) / 1e6
            rows = size // row_bytes
            for name, peer in (("redis", redis_reshard), ("postgres", postgres_copy)):
                if name in given.peers.split(","):
                    seconds = peer(directory, rows, value_bytes, TURNS_PER_SECOND, ROWS_PER_TURN)
                    figures[name] = size / seconds / 1e6
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        for name, figure in figures.items():
            others = [n for n in ("redis", "postgres", "sendfile") if n in figures and n != name]
            ratios = ", ".join(f"{figure / figures[n]:.2f} x {n}" for n in others)
            print(f"  {name:18} {figure:8,.0f} MB/s  {ratios}", flush=True)


if __name__ == "__main__":
    main()
