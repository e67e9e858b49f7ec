"""Foreground work for benchmarks: a process that writes and reads rows of one partition's zone.

    python -m harness.traffic ADDRESS... --rows N --value-bytes B [--per-second R]

Each turn upserts ten rows and reads ten, by random keys of the first N. With `--per-second` that
many turns a second are begun, else one follows the other. A line per turn on standard output:
time of its end (monotonic), seconds of the write, seconds of the read; ends with its input.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from harness.child import input_ended, start
from harness.zone import percentile
from rezone.client import TableClient
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.messages import ZoneConfig

ROWS_PER_TURN = 10
SCHEMA = arrow_schema_of(ZoneConfig(zone="z", zone_uid="u", partitions=1).table)


class Turn(NamedTuple):
    """One turn: when it ended, and how long its write and its read took, in seconds."""

    at: float
    write: float
    read: float


class Window(NamedTuple):
    """The turns of some windows of one kind, and the windows' seconds."""

    turns: list[Turn]
    seconds: list[float]

    def add(self, turns: list[Turn], begun: float, ended: float) -> None:
        """Add the turns that ended between two moments."""
        self.turns.extend(turn for turn in turns if begun < turn.at <= ended)
        self.seconds.append(ended - begun)

    @property
    def per_second(self) -> float:
        """Turns per second."""
        return len(self.turns) / sum(self.seconds)

    def slowest(self, part: str) -> float:
        """Return the 99th percentile of a turn's part, in milliseconds."""
        return percentile([getattr(turn, part) for turn in self.turns], 0.99) * 1e3


def wait_for(turns: list[Turn], count: int) -> None:
    """Wait until the traffic has made so many turns."""
    while len(turns) < count:
        threading.Event().wait(0.05)


def key_of(number: int) -> bytes:
    """Return the key of a row, 8 bytes."""
    return number.to_bytes(8, "big")


def batch_of(numbers: Sequence[int], value_bytes: int, seed: int = 0) -> pa.RecordBatch:
    """Return rows of these numbers; their values do not compress."""
    noise = random.Random(seed).randbytes(value_bytes * len(numbers))
    values = [noise[i * value_bytes : (i + 1) * value_bytes] for i in range(len(numbers))]
    keys = pa.array([key_of(n) for n in numbers], pa.binary())
    return pa.RecordBatch.from_arrays([keys, pa.array(values, pa.binary())], schema=SCHEMA)


@contextlib.contextmanager
def traffic(
    addresses: Sequence[str], rows: int, value_bytes: int, per_second: float = 0
) -> Iterator[list[Turn]]:
    """Run the process meanwhile; the list grows with its turns."""
    arguments = [f"--rows={rows}", f"--value-bytes={value_bytes}", f"--per-second={per_second}"]
    process = start("traffic", [*addresses, *arguments])
    turns: list[Turn] = []

    reader = threading.Thread(target=_read_into, args=(process, turns), daemon=True)
    reader.start()
    try:
        yield turns
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        reader.join(5)


def _read_into(process: "subprocess.Popen[str]", turns: list[Turn]) -> None:
    assert process.stdout is not None
    turns.extend(Turn(*map(float, line.split())) for line in process.stdout)


def main() -> None:
    """Run until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, required=True)
    parser.add_argument("--per-second", type=float, default=0)
    given = parser.parse_args()
    stop = input_ended()
    rng = random.Random(11)
    due = time.monotonic()
    with TableClient(given.addresses) as client:
        while not stop.is_set():
            if given.per_second:
                due += 1 / given.per_second
                stop.wait(max(0.0, due - time.monotonic()))
            numbers = rng.sample(range(given.rows), ROWS_PER_TURN)
            begun = time.monotonic()
            client.write(batch_of(numbers, given.value_bytes, rng.randrange(1 << 30)))
            written = time.monotonic()
            client.read(pa.record_batch([pa.array([key_of(n) for n in numbers])], names=["key"]))
            ended = time.monotonic()
            sys.stdout.write(f"{ended} {written - begun} {ended - written}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
