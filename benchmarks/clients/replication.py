"""What replication costs: CPU per small write, latency, and CPU of nodes without work.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/replication.py [--nodes 4]
        [--partitions 24] [--rate 240]
    PYTHONPATH=operator:benchmarks python benchmarks/clients/replication.py --nodes 3 --leading 1

Nodes are processes of their own on this machine; the client is this one, and writes `--rows` rows
of about 150 bytes to one partition at a time, in turn. All writes are acknowledged by all
replicas' disks. CPU is user and system time of the processes; "of a core" is its share of the
elapsed time. Thread switches are those of threads that wait; load changes them less than CPU. With
`--leading 1` and as many nodes as replicas one node leads every partition and the others follow:
their CPU is shown apart, without what an idle node takes. Medians over `--runs`, on an otherwise
idle machine, or the figures are noise.
"""

import argparse
import statistics
import sys
import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

from harness.zone import Zone, batch_of, ids_by_partition, percentile, running_zone, settle

from rezone.client.operations.writes import PartitionWrite
from rezone.datanode.process import SWITCH_INTERVAL_SECONDS

_KEYS_PER_PARTITION = 64


class Load:
    """Writes at a steady rate, partition after partition; the answers' latencies in ms."""

    def __init__(self, zone: Zone, rows: int) -> None:
        self._keys = ids_by_partition(zone.partitions, _KEYS_PER_PARTITION)
        self._client = zone.client()
        self._rows = rows
        self._writes = 0
        self._open = threading.Semaphore(zone.partitions)
        self._permits = zone.partitions
        self.latencies_ms: list[float] = []

    def run(self, seconds: float, rate: float) -> None:
        """Write for some time; returns when all is answered."""
        self.latencies_ms = []
        begun = time.monotonic()
        for number in range(int(seconds * rate)):
            if (wait := begun + number / rate - time.monotonic()) > 0:
                time.sleep(wait)
            self._write()
        for _ in range(self._permits):
            self._open.acquire()
        for _ in range(self._permits):
            self._open.release()

    def _write(self) -> None:
        self._open.acquire()
        keys = self._keys[self._writes % len(self._keys)]
        first = self._writes // len(self._keys) * self._rows
        ids = [keys[(first + i) % len(keys)] for i in range(self._rows)]
        self._writes += 1
        sent = time.monotonic()

        def answered(future: Future[list[PartitionWrite]]) -> None:
            self.latencies_ms.append((time.monotonic() - sent) * 1000)
            self._open.release()
            future.result()

        self._client.submit_write(batch_of(ids, self._writes)).add_done_callback(answered)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class Run(NamedTuple):
    """One run's figures."""

    idle_share: float
    rows_per_second: float
    node_ms_per_write: float
    node_share: float
    client_ms_per_write: float
    p50_ms: float
    p99_ms: float
    leading_ms_per_write: float
    following_ms_per_write: float
    switches_per_write: float


def measure(zone: Zone, load: Load, given: argparse.Namespace) -> Run:
    """Measure the nodes idle, then under load."""
    count = len(zone.pids())
    before = zone.cpu_seconds()
    elapsed = settle(given.seconds)
    idle = sum(_since(zone, before)) / elapsed / count
    load.run(1, given.rate)  # what is done once is not counted
    before, own, switched = zone.cpu_seconds(), time.process_time(), zone.switches()
    begun = time.monotonic()
    load.run(given.seconds, given.rate)
    elapsed = time.monotonic() - begun
    each, own = _since(zone, before), time.process_time() - own
    switched = zone.switches() - switched
    used, writes = sum(each), len(load.latencies_ms)
    net = [(cpu - idle * elapsed) / writes * 1000 for cpu in each]
    leading = given.leading or count
    return Run(
        idle_share=idle,
        rows_per_second=writes * given.rows / elapsed,
        node_ms_per_write=used / writes * 1000,
        node_share=used / elapsed / count,
        client_ms_per_write=own / writes * 1000,
        p50_ms=percentile(load.latencies_ms, 0.5),
        p99_ms=percentile(load.latencies_ms, 0.99),
        leading_ms_per_write=statistics.mean(net[:leading]),
        following_ms_per_write=statistics.mean(net[leading:] or [0.0]),
        switches_per_write=switched / writes,
    )


def _since(zone: Zone, before: dict[int, float]) -> list[float]:
    """Return the CPU seconds of each node since then, by its number."""
    now = zone.cpu_seconds()
    return [now[node] - before[node] for node in sorted(before)]


def main() -> None:
    """Run and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--leading", type=int, default=0, help="nodes that lead, 0 for all")
    parser.add_argument("--rate", type=float, default=240.0, help="writes per second")
    parser.add_argument("--rows", type=int, default=4, help="rows of one write")
    parser.add_argument("--loaded", type=int, default=200_000, help="rows in the zone before")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase of a run")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    with running_zone(given.nodes, given.partitions, given.replicas, leading=given.leading) as zone:
        zone.load(given.loaded)
        print(f"node processes {zone.pids()}", flush=True)
        load = Load(zone, given.rows)
        runs = [measure(zone, load, given) for _ in range(given.runs)]
        load.close()
    middle = Run(*(statistics.median(values) for values in zip(*runs, strict=True)))
    print(
        f"{given.nodes} nodes, {given.partitions} partitions, {given.replicas} replicas, "
        f"{given.rate:.0f} writes/s of {given.rows} rows; medians of {given.runs} runs"
    )
    print(f"  idle node                {middle.idle_share * 100:8.1f} % of a core")
    print(f"  node under load          {middle.node_share * 100:8.1f} % of a core")
    print(f"  rows                     {middle.rows_per_second:8.0f} /s")
    print(f"  CPU of all nodes         {middle.node_ms_per_write:8.2f} ms per write")
    print(f"  thread switches          {middle.switches_per_write:8.1f} of all nodes per write")
    if given.leading:
        print(f"  of it a node that leads  {middle.leading_ms_per_write:8.2f} ms, without idle CPU")
        print(
            f"  any other node           {middle.following_ms_per_write:8.2f} ms, without idle CPU"
        )
    print(f"  CPU of the client        {middle.client_ms_per_write:8.2f} ms per write")
    print(f"  latency                  {middle.p50_ms:8.1f} ms p50, {middle.p99_ms:.1f} ms p99")


if __name__ == "__main__":
    main()
