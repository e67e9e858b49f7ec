"""Whether a partition moves while it is written to as fast as can be (B-16).

    PYTHONPATH=operator:benchmarks python benchmarks/moves/converge.py [--mb 200]
        [--per-second 30000]

A partition with so many MB of 1 KiB rows; a writer that offers so many rows a second to it, in
batches of 500, eight at a time. The partition is copied to an empty node, which must join the
in-sync set, and is then led by it. Printed: how long each step takes, what the writer gets before,
meanwhile and after, the lowest rate it was slowed to, its longest write, and its failures.
"""

import argparse
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from harness.one_partition import KEY_BYTES, P, prepare, pulled, source_zone
from harness.traffic import batch_of
from replica_cluster import Coordinator

from rezone.client import TableClient

BATCH_ROWS = 500
IN_FLIGHT = 8
STEADY_SECONDS = 5.0


class Flood:
    """Writes by a process of its own; `turns` are (time of the answer, seconds) of its batches."""

    def __init__(self, addresses: list[str], rows: int, per_second: int) -> None:
        self.turns: list[tuple[float, float]] = []
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--writer", ",".join(addresses), str(rows), str(per_second)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, seconds = line.split()
            self.turns.append((float(at), float(seconds)))

    def rate(self, begun: float, ended: float) -> float:
        """Return the rows per second between two times."""
        return sum(begun < at <= ended for at, _ in self.turns) * BATCH_ROWS / (ended - begun)

    def close(self) -> int:
        """End it; returns its exit code, 0 if no write has failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(60)
        self._reader.join(10)
        return code


def write(addresses: list[str], rows: int, per_second: int) -> None:
    """Be the writing process, until standard input ends."""
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    rng, due = random.Random(5), time.monotonic()
    places: queue.Queue[None] = queue.Queue(IN_FLIGHT)
    failures: list[BaseException] = []
    batches = [
        batch_of(rng.sample(range(rows), BATCH_ROWS), 1024 - KEY_BYTES, i) for i in range(20)
    ]
    with TableClient(addresses) as client:
        while not ended.is_set() and not failures:
            due = max(due + BATCH_ROWS / per_second, time.monotonic() - 1)
            ended.wait(max(0.0, due - time.monotonic()))
            places.put(None)
            begun = time.monotonic()
            future = client.submit_write(rng.choice(batches))

            def done(result: object, begun: float = begun) -> None:
                places.get()
                if error := result.exception():  # type: ignore[attr-defined]
                    failures.append(error)
                now = time.monotonic()
                sys.stdout.write(f"{now} {now - begun}\n")

            future.add_done_callback(done)
        for _ in range(IN_FLIGHT):
            places.put(None)  # until all are answered
    sys.stdout.flush()
    if failures:
        sys.exit(f"a write has failed: {failures[0]}")


def wait_joined(c: Coordinator, slowest: list[int]) -> None:
    """Wait until node 1 is in sync; notes the rates that writers are slowed to."""

    def joined() -> bool:
        c.settle()
        if paced := c.report(0, P).paced_rows_per_second:
            slowest.append(paced)
        return c.isr(P) == {0, 1}

    c.until("joined", joined, 300)


def run(directory: Path, rows: int, per_second: int) -> None:
    """Measure once."""
    with source_zone(directory, rows, 1024 - KEY_BYTES) as c:
        flood = Flood([node.address for node in c.nodes.values()], rows, per_second)
        try:
            while not flood.turns:
                threading.Event().wait(0.05)
            begun = time.monotonic()
            threading.Event().wait(STEADY_SECONDS)
            prepare(c)
            started = time.monotonic()
            seconds = pulled(c)
            copied = time.monotonic()
            slowest: list[int] = []
            wait_joined(c, slowest)
            in_sync = time.monotonic()
            c.move(P, 1)
            led = time.monotonic()
            threading.Event().wait(STEADY_SECONDS)
            over = time.monotonic()
        finally:
            code = flood.close()
    print(f"  copied in {seconds:.1f} s, in sync {in_sync - copied:.1f} s later, "
          f"leads {led - in_sync:.2f} s later")  # fmt: skip
    for name, first, last in (
        ("before", begun, started),
        ("copying", started, copied),
        ("catching up", copied, in_sync),
        ("taking over", in_sync, led),
        ("after", led, over),
    ):
        print(f"  {name:12} {flood.rate(first, last):10,.0f} rows/s acknowledged")
    longest = max(seconds for _, seconds in flood.turns)
    lowest = f"{min(slowest):,} rows/s at the lowest" if slowest else "nothing"
    print(f"  slowed to {lowest}, "
          f"longest write {longest:.2f} s, failures: {'none' if code == 0 else code}")  # fmt: skip


def main() -> None:
    """Run, as the benchmark or as its writing process."""
    if sys.argv[1:2] == ["--writer"]:
        write(sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--per-second", type=int, default=30_000)
    given = parser.parse_args()
    print(f"{given.mb} MB of 1 KiB rows, {given.per_second:,} rows/s offered")
    directory = Path(tempfile.mkdtemp(prefix="rezone-converge-"))
    try:
        run(directory, given.mb * 10**6 // 1024, given.per_second)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
