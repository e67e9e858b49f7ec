"""The write gap at planned takeovers between in-sync replicas of a running zone.

    PYTHONPATH=operator python benchmarks/leader_move.py [--moves 100] [--partitions 3]

Every partition has a writer of its own that sends its next write a pause after the last answer,
a short one while the partition's leader moves. The gap of a move is the longest time between two
answers around it, pause included; the usual spacing beside it is the median then. Nodes are
processes of their own, all writes are acknowledged by all replicas' disks. On an otherwise idle
machine, or the figures are noise.
"""

import argparse
import bisect
import contextlib
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from harness.zone import Zone, batch_of, ids_by_partition, percentile, running_zone, settle

from rezone.client import TableClient
from rezone.replica.process import SWITCH_INTERVAL_SECONDS
from rezone.wire.messages import Role

_AROUND_SECONDS = 0.05


class Writer:
    """One partition's writer: one write on its way at a time."""

    def __init__(self, client: TableClient, ids: list[int], pause_seconds: float) -> None:
        self.acks: list[float] = []
        self.pause_seconds = pause_seconds
        self._client = client
        self._ids = ids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            self._client.write(batch_of(self._ids, number))
            self.acks.append(time.monotonic())
            time.sleep(self.pause_seconds)

    def stop(self) -> None:
        """End after the write under way."""
        self._stop.set()
        self._thread.join()


class Move(NamedTuple):
    """One takeover: its longest gap, the usual spacing, and from the call to the new leader."""

    gap_ms: float
    usual_ms: float
    call_to_lead_ms: float


@contextlib.contextmanager
def writers(zone: Zone, given: argparse.Namespace) -> Iterator[list[Writer]]:
    """Run a writer for every partition."""
    keys = ids_by_partition(zone.partitions, given.rows)
    with zone.client() as client:
        made = [Writer(client, ids, given.pause_ms / 1000) for ids in keys]
        try:
            yield made
        finally:
            for writer in made:
                writer.stop()


def move(zone: Zone, partition: int, writer: Writer) -> Move:
    """Hand one partition over to the next in-sync replica."""
    coordinator = zone.coordinator
    record = coordinator.records[partition]
    at = record.replicas.index(record.leader)
    candidate = record.replicas[(at + 1) % len(record.replicas)]
    record = coordinator.authorise(partition, candidate)
    settle(_AROUND_SECONDS)
    begun = time.monotonic()
    coordinator.takeover(partition)

    def leads() -> bool:
        report = zone.replica(candidate, partition)
        return (
            report is not None
            and report.role is Role.LEADER
            and report.leader_epoch == record.next_epoch
        )

    zone.wait(f"node {candidate} leads", leads)
    led = time.monotonic()
    settle(_AROUND_SECONDS)
    acks = writer.acks[bisect.bisect_left(writer.acks, begun - _AROUND_SECONDS / 2) :]
    spaces = [(b - a) * 1000 for a, b in itertools.pairwise(acks)]
    coordinator.settle()
    zone.wait("followers stream", lambda: zone.streaming(partition))
    return Move(max(spaces), statistics.median(spaces), (led - begun) * 1000)


def main() -> None:
    """Move leaders in turn and print the distribution."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4, help="rows of one write")
    parser.add_argument("--pause-ms", type=float, default=50.0, help="a writer's usual pause")
    parser.add_argument("--moving-pause-ms", type=float, default=1.0, help="while it moves")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    moves: list[Move] = []
    with (
        running_zone(given.nodes, given.partitions, given.replicas) as zone,
        writers(zone, given) as made,
    ):
        for number in range(given.moves):
            writer = made[number % len(made)]
            writer.pause_seconds = given.moving_pause_ms / 1000
            moves.append(move(zone, number % len(made), writer))
            writer.pause_seconds = given.pause_ms / 1000
    gaps = [one.gap_ms for one in moves]
    print(f"{given.moves} moves, {given.nodes} nodes, {given.partitions} partitions")
    print(f"  write gap        {percentile(gaps, 0.5):8.1f} ms median")
    print(f"                   {percentile(gaps, 0.9):8.1f} ms p90")
    print(f"                   {percentile(gaps, 0.99):8.1f} ms p99")
    print(f"                   {max(gaps):8.1f} ms longest")
    print(f"  usual spacing    {statistics.median(one.usual_ms for one in moves):8.1f} ms")
    print(f"  call to new lead {statistics.median(one.call_to_lead_ms for one in moves):8.1f} ms")


if __name__ == "__main__":
    main()
