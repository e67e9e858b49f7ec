"""How long writes stand still when a follower's process dies, by how long it is waited for.

    PYTHONPATH=operator:benchmarks python benchmarks/failures/follower_death.py [--rounds 3]
        [--partitions 8]

Each round makes a zone of three nodes (at least two in sync), writes to all partitions all the time
and kills (SIGKILL) a node that leads nothing. The leaders then ask for smaller in-sync sets after
`replica_gone_ms_max`, or, with `--grace-ms` 60000, only after `replica_lag_ms_max` (10 s), which
is what they did before there was that setting. The coordinator of the tests answers within 20 ms
of a report; the operator's write to the API server comes on top. Measured per partition: from the
kill to the first write that is acknowledged again after the longest pause.
"""

import argparse
import itertools
import os
import sys
import time
from pathlib import Path

from failover import Writers
from harness.zone import percentile, running_zone, settle

from rezone.datanode.process import SWITCH_INTERVAL_SECONDS
from rezone.datanode.settings import variable_of

_NODES, _VICTIM = 3, 2
_RUNNING_SECONDS = 2.0


def one(partitions: int, rows: int, grace_ms: int, pause_ms: float) -> list[float]:
    """Make a zone, kill a follower of all its partitions; return each longest pause in ms."""
    os.environ[variable_of("replica_gone_ms_max")] = str(grace_ms)
    with (
        running_zone(_NODES, partitions, _NODES, leading=_VICTIM) as zone,
        zone.client() as client,
    ):
        zone.load(rows)
        zone.coordinator.watch()
        writers = Writers(zone, client, 4, pause_ms / 1000)
        settle(_RUNNING_SECONDS)
        zone.coordinator.nodes[_VICTIM].kill()  # type: ignore[union-attr]
        killed = time.monotonic()
        while not all(acks and acks[-1] > killed + 0.2 for acks in writers.acks):
            settle(0.05)
        settle(_RUNNING_SECONDS)
        writers.stop()
        return [1000 * _longest_pause(acks, killed) for acks in writers.acks]


def _longest_pause(acks: list[float], killed: float) -> float:
    """Return the longest time between two answers of which the second came after the kill."""
    return max(after - before for before, after in itertools.pairwise(acks) if after > killed)


def main() -> None:
    """Kill followers with each grace in turn, and print the distributions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rows", type=int, default=2_000, help="rows loaded before")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="a writer's pause")
    parser.add_argument("--grace-ms", type=int, nargs="+", default=[100, 500, 60_000])
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    found: dict[int, list[float]] = {grace: [] for grace in given.grace_ms}
    for _ in range(given.rounds):
        for grace, pauses in found.items():
            pauses.extend(one(given.partitions, given.rows, grace, given.pause_ms))
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{given.rounds} kills each of a follower of {given.partitions} partitions; load {load}")
    print("waited for, ms    writes stood still, ms: median      max")
    for grace, pauses in found.items():
        print(f"{grace:14}    {percentile(pauses, 0.5):30.0f} {max(pauses):8.0f}")


if __name__ == "__main__":
    main()
