"""What a data node takes of memory: idle, and during snapshots under full write load.

    PYTHONPATH=operator:benchmarks python benchmarks/storage/memory.py [--partitions 256]
        [--snapshots 8] [--mb 512] [--seconds 20]

One data node leads all partitions alone. Its memory is that of its process (RSS; anonymous, and
the most there ever was) and that of its parts, by its metrics, beside their limits: empty, loaded
with rows of 1 KiB and left alone, and while four clients write as fast as they can and so many
snapshots of rows are read, slowly, so that their queues and sets fill. "base" is what the process
takes beside the parts.
"""

import argparse
import json
import re
import shutil
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from harness.traffic import batch_of, traffic
from harness.zone import settle
from replica_cluster import Coordinator, ProcessNode, cluster

from rezone.client import TableClient
from rezone.wire.messages import SnapshotTicket, ZoneConfig
from rezone.wire.transport.flight import NodeClient

VALUE_BYTES = 1016
BATCH_ROWS = 4096
CLIENTS = 4
BATCH_BYTES = 64 << 10
BATCH_SECONDS = 0.25
QUIET_SECONDS = 12.0
_PART = re.compile(r'^rezone_data_node_memory(_limit)?_bytes{part="(\w+)"} (\S+)', re.MULTILINE)


class Seen(NamedTuple):
    """The process's memory in MB, and each part's bytes and limit."""

    rss: float
    anonymous: float
    most: float
    parts: dict[str, tuple[float, float]]


def look(pid: int, port: int) -> Seen:
    """Ask the kernel and the node."""
    status = Path(f"/proc/{pid}/status").read_text()
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"(\w+):\s+(\d+) kB", status)}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, list[float]] = {}
    for limit, part, value in _PART.findall(text):
        found.setdefault(part, [0.0, 0.0])[bool(limit)] = float(value)
    parts = {part: (used, limit) for part, (used, limit) in found.items()}
    return Seen(sizes["VmRSS"] / 1e6, sizes["RssAnon"] / 1e6, sizes["VmHWM"] / 1e6, parts)


def show(name: str, seen: Seen) -> None:
    """Print one line."""
    used = sum(each for each, _ in seen.parts.values()) / 1e6
    cells = ", ".join(f"{part} {each / 1e6:.0f}" for part, (each, _) in seen.parts.items())
    print(
        f"{name:34} RSS {seen.rss:6.0f} (anonymous {seen.anonymous:5.0f}, most {seen.most:5.0f}) MB"
        f"; parts {used:5.0f}: {cells}",
        flush=True,
    )


class SlowReaders:
    """Snapshots of the first partitions, a few small batches a second each."""

    def __init__(self, address: str, count: int) -> None:
        self._stop = threading.Event()
        self.batches = 0
        self._threads = [
            threading.Thread(target=self._read, args=(address, partition), daemon=True)
            for partition in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, address: str, partition: int) -> None:
        client = NodeClient(address)
        while not self._stop.is_set():
            ticket = SnapshotTicket(
                partition=partition, reader=f"slow {partition}", batch_bytes=BATCH_BYTES
            )
            stream = client.get(ticket)
            for _ in stream:
                self.batches += 1
                if self._stop.wait(BATCH_SECONDS):
                    stream.cancel()
                    break
        client.close()

    def stop(self) -> None:
        """End all."""
        self._stop.set()
        for thread in self._threads:
            thread.join(10)


def load(address: str, rows: int) -> None:
    """Write rows to all partitions."""
    with TableClient([address]) as client:
        for start in range(0, rows, BATCH_ROWS):
            numbers = list(range(start, min(start + BATCH_ROWS, rows)))
            client.write(batch_of(numbers, VALUE_BYTES, start))


def measure(c: Coordinator, given: argparse.Namespace) -> list[Seen]:
    """Go through the states."""
    node = c.nodes[0]
    assert isinstance(node, ProcessNode)
    assert node.process is not None
    lines = map(json.loads, (node.directory / "log.txt").read_text().splitlines())
    port = next(line["health_port"] for line in lines if line["event"] == "serving")
    seen: list[Seen] = []

    def note(name: str) -> None:
        assert node.process is not None
        seen.append(look(node.process.pid, port))
        show(name, seen[-1])

    note("no partitions")
    for partition in range(given.partitions):
        c.create(partition, (0,))
    note(f"{given.partitions} empty partitions")
    rows = given.mb * 10**6 // 1024
    load(node.address, rows)
    settle(QUIET_SECONDS)
    note(f"loaded with {given.mb} MB, idle")
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(traffic([node.address], rows, VALUE_BYTES))
        readers = SlowReaders(node.address, given.snapshots)
        stack.callback(readers.stop)
        begun = time.monotonic()
        while time.monotonic() - begun < given.seconds:
            settle(given.seconds / 4)
            note(f"{given.snapshots} snapshots, {CLIENTS} writers, {readers.batches} batches")
    return seen


def main() -> None:
    """Measure and compare with the sum of the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=256)
    parser.add_argument("--snapshots", type=int, default=8)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="rezone-memory-"))
    config = ZoneConfig(zone="bench", zone_uid="uid-bench", partitions=given.partitions)
    try:
        with cluster(directory, 1, processes=True, config=config) as c:
            seen = measure(c, given)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    limits = {part: limit for part, (_, limit) in seen[-1].parts.items()}
    print("limits: " + ", ".join(f"{part} {limit / 1e6:.0f}" for part, limit in limits.items()))
    base = seen[1].rss - sum(used for used, _ in seen[1].parts.values()) / 1e6
    total = base + sum(limits.values()) / 1e6
    print(f"base {base:.0f} MB + limits = {total:.0f} MB; most {seen[-1].most:.0f} MB")
    over = [part for each in seen for part, (used, limit) in each.parts.items() if used > limit]
    print(f"over their limit: {', '.join(over) or 'none'}")


if __name__ == "__main__":
    main()
