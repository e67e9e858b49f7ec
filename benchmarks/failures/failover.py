"""The time until a killed node's partitions are led again: by hot standbys, and by cold followers.

    PYTHONPATH=operator:benchmarks python benchmarks/failures/failover.py [--rounds 3]
        [--partitions 24]

Each round makes two zones of three nodes, one with a hot standby for each partition, one without,
loads both and writes to all partitions all the time. Then one node is killed (SIGKILL), and at once
its leaders are replaced as the operator does once it has noticed and the lease is over; that
waiting (`REZONE_REPORT_TIMEOUT_SECONDS`, `REZONE_LEADER_LEASE_SECONDS`) is the same for both and
is not measured. Of the partitions that the killed node led:

- `to apply`: rows that the new leader had in its log and not in its engine just before;
- `leads`: from sending the records to the report of a leader with everything in its engine;
- `write gap`: from the kill to the first write that is acknowledged again, the client's pauses
  between attempts included.

On an otherwise idle machine, or the figures are noise.
"""

import argparse
import bisect
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from harness.zone import Zone, batch_of, ids_by_partition, percentile, running_zone, settle

from rezone.client import TableClient
from rezone.datanode.process import SWITCH_INTERVAL_SECONDS
from rezone.domain.routing import route_leaders, routes
from rezone.wire.messages import (
    LeaderAndIsr,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    PartitionId,
    Role,
)

_NODES, _VICTIM = 3, 0
_RUNNING_SECONDS = 2.0
_BULK_ROWS = 2_000


class Failover(NamedTuple):
    """One partition's failover."""

    to_apply: int
    leads_ms: float
    gap_ms: float


class Writers:
    """A writer for each partition, and one that writes as much as it can to all of them."""

    def __init__(self, zone: Zone, client: TableClient, rows: int, pause_seconds: float) -> None:
        self.acks: list[list[float]] = [[] for _ in range(zone.partitions)]
        self._client = client
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        ids = ids_by_partition(zone.partitions, rows)
        self._threads = [
            threading.Thread(target=self._write, args=(ids[p], self.acks[p]), daemon=True)
            for p in range(zone.partitions)
        ]
        self._threads.append(threading.Thread(target=self._write_bulk, daemon=True))
        for thread in self._threads:
            thread.start()

    def _write(self, ids: list[int], acks: list[float]) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            self._client.write(batch_of(ids, number))
            acks.append(time.monotonic())
            time.sleep(self._pause_seconds)

    def _write_bulk(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            self._client.write(batch_of(list(range(_BULK_ROWS)), number))

    def stop(self) -> None:
        """End after the writes under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def make_standbys(zone: Zone) -> None:
    """Give each partition a hot standby, and wait until all of them are in `iss`."""
    coordinator = zone.coordinator
    for partition, record in list(coordinator.records.items()):
        coordinator.change(partition, hot_standby_replica=record.replicas[1])
    while not all(record.iss for record in coordinator.records.values()):
        coordinator.settle()


def replaced(zone: Zone) -> dict[PartitionId, LeaderAndIsr]:
    """Return the records that replace the victim as a leader, or as a member of a set."""
    alive = set(range(_NODES)) - {_VICTIM}
    minimum = zone.coordinator.config.min_in_sync_replicas
    found = {}
    for partition, record in zone.coordinator.records.items():
        after = route_leaders.fail_over(record, alive, minimum=minimum)
        if record.leader != _VICTIM:
            dropped = routes.drop_from_isr(record, (_VICTIM,), minimum=minimum)
            after = dropped if isinstance(dropped, LeaderAndIsr) else None
        if after is not None and after is not record:
            found[partition] = after
    return found


def kill(
    zone: Zone,
) -> tuple[float, float, dict[PartitionId, LeaderAndIsr], dict[PartitionId, int]]:
    """Kill the victim and replace it: the times of both, the new records, rows still to apply."""
    coordinator = zone.coordinator
    records = replaced(zone)
    request = NotifyLeaderAndIsr(
        fence=coordinator.fence(),
        partitions=tuple(PartitionAssignment(partition=p, state=r) for p, r in records.items()),
        peers=coordinator.peers,
    )
    behind = {}
    for partition, record in records.items():
        report = zone.replica(record.leader, partition)
        behind[partition] = report.log_end_offset - report.kv_applied_offset if report else 0
    killed = time.monotonic()
    coordinator.nodes[_VICTIM].kill()  # type: ignore[union-attr]
    sent = time.monotonic()
    with ThreadPoolExecutor(_NODES) as pool:
        for done in [pool.submit(coordinator.call, n, request) for n in range(1, _NODES)]:
            done.result()
    return killed, sent, records, behind


def one(given: argparse.Namespace, *, hot: bool) -> list[Failover]:
    """Make a zone, kill a node of it, and return what became of the partitions it led."""
    with running_zone(_NODES, given.partitions, _NODES) as zone, zone.client() as client:
        zone.load(given.rows)
        if hot:
            make_standbys(zone)
        led = [p for p, r in zone.coordinator.records.items() if r.leader == _VICTIM]
        writers = Writers(zone, client, 4, given.pause_ms / 1000)
        settle(_RUNNING_SECONDS)
        killed, sent, records, behind = kill(zone)
        times: dict[PartitionId, float] = {}

        def all_lead() -> bool:
            for partition in led:
                report = zone.replica(records[partition].leader, partition)
                if (
                    partition not in times
                    and report is not None
                    and report.role is Role.LEADER
                    and report.leader_epoch == records[partition].leader_epoch
                    and report.kv_applied_offset >= report.committed_offset
                ):
                    times[partition] = time.monotonic()
            return len(times) == len(led)

        zone.wait("all are led", all_lead)
        while not all(writers.acks[p] and writers.acks[p][-1] > sent for p in led):
            settle(0.05)
        settle(_RUNNING_SECONDS / 4)
        writers.stop()
        gaps = {}
        for partition in led:
            acks = writers.acks[partition]
            gaps[partition] = acks[bisect.bisect_right(acks, sent)] - killed
    return [Failover(behind[p], (times[p] - sent) * 1000, gaps[p] * 1000) for p in led]


def main() -> None:
    """Kill nodes of both kinds of zones in turn, and print the distributions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--rows", type=int, default=200_000, help="rows loaded before")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="a writer's pause")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    found: dict[str, list[Failover]] = {"hot standby": [], "cold follower": []}
    for _ in range(given.rounds):
        for name, results in found.items():
            results.extend(one(given, hot=name == "hot standby"))
    count = len(found["hot standby"])
    print(f"{given.rounds} kills each of a node of {_NODES}: {count} leaders of {given.partitions}")
    print("                  to apply, rows      leads, ms            write gap, ms")
    print("                  median      max     median    p90    max     median    p90    max")
    for name, results in found.items():
        rows = [float(r.to_apply) for r in results]
        leads, gaps = [r.leads_ms for r in results], [r.gap_ms for r in results]
        print(
            f"{name:14}  {percentile(rows, 0.5):8.0f} {max(rows):8.0f}"
            f"   {percentile(leads, 0.5):8.1f} {percentile(leads, 0.9):6.1f} {max(leads):6.1f}"
            f"   {percentile(gaps, 0.5):8.1f} {percentile(gaps, 0.9):6.1f} {max(gaps):6.1f}"
        )


if __name__ == "__main__":
    main()
