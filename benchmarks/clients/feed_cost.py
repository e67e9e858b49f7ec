"""What writers keep while others follow the changes of their zone.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/feed_cost.py [--rounds 5] [--seconds 4]
        [--clients 16] [--rows 1 100] [--feeds 1 4] [--percents 80 0] [--partitions 8] [--apart]

Three data nodes are processes of their own, all replicas are on disk. The writers are threads of
this process with one `TableClient`, each with one write of `--rows` rows under way; all rows were
there before. All feeds are in another process, each with a `TableClient` of its own, and follow the
whole zone: from leaders, from followers, and both again with old rows; each with the zone's
`rebalance.foregroundTargetPercent` at every one of `--percents`: at 0 feeds take what they get.

Each round measures writers alone and, directly behind that, with feeds, once for each case. A
round's figures with feeds are divided by those alone beside them; printed are medians of these
ratios over all rounds, and their least and greatest:

- rate: writes a second, of those alone. 99 %: the time that one write of a hundred takes longer
  than, as a multiple.
- nodes: processor time of all data nodes for one write, as a multiple.
- in time: changes that the feeds had when the writers stopped, of all that were written then.
- feeds us: processor time of the feeds' process for one change, in microseconds.

All processes share the machine's cores. So on a small machine "rate" has also what the feeds'
process itself takes, which is elsewhere in a cluster; "nodes" has what data nodes do, and that
alone. A feed that does not get each row once ends the run: the figures would be of something else.

With `--apart` there is one data node, on one core that nobody else uses; writers and feeds have
another, where feeds come last. So "rate" has what feeds cost writers at the node, and nothing else.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from harness.closed_loop import Figures, Operation, run
from harness.followers import following
from harness.zone import Zone, batch_of, running_zone

from rezone.client import TableClient
from rezone.datanode.process import SWITCH_INTERVAL_SECONDS

_KEYS = 10_000
_STEP = 7919
_FIRST = 1013
_LAST_NICE = 19


class Case(NamedTuple):
    """How many feeds, how they follow, and what they leave to writers."""

    percent: int
    feeds: int
    from_followers: bool
    old_rows: bool

    def __str__(self) -> str:
        """Name it for a line of the table."""
        whom = "followers" if self.from_followers else "leaders"
        old = ", old rows" if self.old_rows else ""
        return f"{self.feeds} from {whom}{old}, {self.percent} %"


class Compared(NamedTuple):
    """One round of a case: ratios to the writers alone beside it, and what feeds had and took."""

    rate: float
    slowest: float
    nodes: float
    in_time: float
    feeds_us: float


class Writers:
    """The writers, who count what they have written."""

    def __init__(self, zone: Zone, client: TableClient, clients: int, rows: int) -> None:
        self._zone = zone
        self._client = client
        self._clients = clients
        self._rows = rows
        self._turns = itertools.count(1)
        self.alone: list[Figures] = []

    def _operation(self, first: int) -> tuple[Operation, Callable[[], int]]:
        """Return what writes its next rows, and what says how many it has written."""
        turns = itertools.count(first)
        written = 0

        def write() -> None:
            nonlocal written
            # Keys of one write differ: the step has no divisor in common with their number.
            ids = [next(turns) * _STEP % _KEYS for _ in range(self._rows)]
            self._client.write(batch_of(ids, next(self._turns)))
            written += self._rows

        return write, lambda: written

    def run(self, seconds: float) -> tuple[Figures, int]:
        """Write as fast as it goes; return the figures, and how many rows were written in all."""
        made = [self._operation(index * _FIRST) for index in range(self._clients)]
        figures = run([write for write, _ in made], seconds, self._cpu)
        return figures, sum(written() for _, written in made)

    def _cpu(self) -> float:
        return sum(self._zone.cpu_seconds().values())


def give_core(pid: int, core: int) -> None:
    """Have all threads of a process run on one core alone, and those that it will make."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def compared(
    zone: Zone, writers: Writers, case: Case, seconds: float, *, nice: int = 0
) -> Compared:
    """Measure writers alone, then with feeds."""
    coordinator = zone.coordinator
    coordinator.config = msgspec.structs.replace(
        coordinator.config, foreground_target_percent=case.percent
    )
    coordinator.configure()
    alone, _ = writers.run(seconds)
    writers.alone.append(alone)
    addresses = [node.address for node in zone.coordinator.nodes.values()]
    options = {"from_followers": case.from_followers, "old_rows": case.old_rows}
    with following(addresses, case.feeds, nice=nice, **options) as followers:
        figures, written = writers.run(seconds)
        found = followers.end(time.time_ns() // 1000)
    due = written * case.feeds
    if found.changes != due:
        raise SystemExit(f"{case}: {found.changes} changes came, {due} were due")
    return Compared(
        figures.rate / alone.rate,
        figures.slowest_ms / alone.slowest_ms,
        figures.servers_us / alone.servers_us,
        found.in_time / due,
        found.cpu_seconds * 1e6 / max(1, found.in_time),
    )


def spread(values: Sequence[float]) -> str:
    """Return the median of ratios, with the least and the greatest."""
    return f"{statistics.median(values):6.2f} ({min(values):.2f} to {max(values):.2f})"


def show(cases: dict[Case, list[Compared]]) -> None:
    """Print a line for each case."""
    print(f"  {'feeds':36}{'rate':>21}{'99 %':>21}{'nodes':>21}  in time  feeds us")
    for case, rounds in cases.items():
        columns = "".join(
            f"{spread([getattr(each, name) for each in rounds]):>21}"
            for name in ("rate", "slowest", "nodes")
        )
        in_time, took = (
            statistics.median(getattr(each, name) for each in rounds)
            for name in ("in_time", "feeds_us")
        )
        print(f"  {case!s:36}{columns}{in_time:9.2f}{took:10,.0f}", flush=True)


def measure(given: argparse.Namespace, rows: int) -> None:
    """Measure all cases in turn, round after round, and print."""
    whom = (False,) if given.apart else (False, True)
    ways = itertools.product((False, True), given.feeds, whom, given.percents)
    nodes, nice = (1, _LAST_NICE) if given.apart else (3, 0)
    cases: dict[Case, list[Compared]] = {
        Case(percent, feeds, from_followers, old_rows): []
        for old_rows, feeds, from_followers, percent in ways
    }
    with running_zone(nodes, given.partitions, nodes) as zone, zone.client() as client:
        if given.apart:
            cores = sorted(os.sched_getaffinity(0))
            give_core(zone.pids()[0], cores[0])
            give_core(os.getpid(), cores[1])
        client.write(batch_of(list(range(_KEYS)), 0))
        writers = Writers(zone, client, given.clients, rows)
        writers.run(given.seconds)  # nothing is cold for the first case
        for _ in range(given.rounds):
            for case, rounds in cases.items():
                rounds.append(compared(zone, writers, case, given.seconds, nice=nice))
    rate, slowest, cost = (
        statistics.median(getattr(each, name) for each in writers.alone)
        for name in ("rate", "slowest_ms", "servers_us")
    )
    print(
        f"{given.clients} writers of {rows} rows, alone: {rate:,.0f} writes/s; "
        f"99 % {slowest:.1f} ms; nodes {cost:,.0f} us a write; medians of {given.rounds} rounds"
    )
    show(cases)


def main() -> None:
    """Measure each size of write in a zone of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--feeds", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--percents", type=int, nargs="+", default=[80, 0])
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--apart", action="store_true")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    for rows in given.rows:
        measure(given, rows)


if __name__ == "__main__":
    main()
