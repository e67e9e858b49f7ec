"""YCSB's core workloads A, B, C, D and F, and pure inserts, on Rezone and its peers.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/ycsb.py [--workloads A B C D F insert]
        [--bytes 100 1024] [--clients 1 16 64 256] [--seconds 2]
        [--systems rezone etcd redis1 redis2 postgres] [--json figures.json]

Workloads as published with YCSB (Cooper et al., 2010, and its repository's `workloads/`): A reads
half of the time and updates else, B reads 95 %, C reads only, D reads 95 % and inserts else, F
reads half of the time and else reads a row and writes it back. Rows are chosen by a Zipfian
distribution with the constant 0.99, scattered over the keys; by D the newest rows are the likeliest
ones. An update writes the row whole, because not all of these systems have anything smaller. E
(scans) is left out: Redis and etcd have keys of one row each.

What the systems promise differs: `harness/stores.py` says it. All clients are threads of one Python
process, so its own processor time bounds the rate of the fastest systems: compare processor time
an operation as well, of that process and of all servers together. One operation of F that writes
is two requests. A system takes 15 to 30 s to start and fill, and each combination of workload,
row and clients `--seconds` and half a second.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.closed_loop import Figures, Operation, run
from harness.leaders import NotHereError
from harness.stores import (
    ROW_OVERHEAD_BYTES,
    RezoneStore,
    Store,
    StoreClient,
    etcd_store,
    postgres_store,
    redis_store,
)
from harness.zone import running_zone

from rezone.datanode.process import SWITCH_INTERVAL_SECONDS

ZIPFIAN_CONSTANT = 0.99
_WARM_SECONDS = 0.5
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_TEXTS = 64


class Workload(NamedTuple):
    """How many of a hundred operations are what; `latest`: new rows are read most."""

    read: int
    update: int = 0
    insert: int = 0
    modify: int = 0
    latest: bool = False


WORKLOADS = {
    "A": Workload(read=50, update=50),
    "B": Workload(read=95, update=5),
    "C": Workload(read=100),
    "D": Workload(read=95, insert=5, latest=True),
    "F": Workload(read=50, modify=50),
    "insert": Workload(read=0, insert=100),
}


class Zipfian:
    """Numbers below `count`, 0 the likeliest."""

    def __init__(self, count: int, constant: float = ZIPFIAN_CONSTANT) -> None:
        self._ranks = range(count)
        self._weights = list(itertools.accumulate(1 / (n + 1) ** constant for n in self._ranks))

    def next(self, rng: random.Random) -> int:
        """Return one of them."""
        return rng.choices(self._ranks, cum_weights=self._weights)[0]


class Keys:
    """The rows of one store: so many at first, and those that are inserted."""

    def __init__(self, count: int) -> None:
        self._zipfian = Zipfian(count)
        self._places = list(range(count))
        random.Random(count).shuffle(self._places)
        self._inserts = itertools.count(count)
        self._newest = count - 1

    def any(self, rng: random.Random) -> int:
        """Return a row that is there from the start."""
        return self._places[self._zipfian.next(rng)]

    def late(self, rng: random.Random) -> int:
        """Return one of the newest rows."""
        return self._newest - self._zipfian.next(rng)

    def insert(self, write: Callable[[int], object]) -> None:
        """Write a new row."""
        number = next(self._inserts)
        write(number)
        # Two threads at once may leave the lower one: the newest is read some rows later.
        self._newest = max(self._newest, number)


def operation(
    client: StoreClient, workload: Workload, keys: Keys, texts: Sequence[str], seed: int
) -> Operation:
    """Return what makes one operation of a workload after the other."""
    rng = random.Random(seed)
    kinds = ("read", "update", "insert", "modify")
    weights = [getattr(workload, kind) for kind in kinds]
    chosen = keys.late if workload.latest else keys.any

    def once() -> None:
        kind = rng.choices(kinds, weights)[0]
        if kind == "insert":
            keys.insert(lambda number: client.put(number, rng.choice(texts)))
            return
        number = chosen(rng)
        if kind != "update":
            client.get(number)
        if kind != "read":
            client.put(number, rng.choice(texts))

    return once


class Measured(NamedTuple):
    """The figures of one combination; `load`: the machine's, of the last minute."""

    system: str
    workload: str
    row_bytes: int
    clients: int
    figures: Figures
    load: float


def measure(store: Store, given: argparse.Namespace) -> Iterator[Measured]:
    """Run all workloads on one store."""
    for row_bytes in given.bytes:
        rng = random.Random(row_bytes)
        length = row_bytes - ROW_OVERHEAD_BYTES
        texts = ["".join(rng.choices(_LETTERS, k=length)) for _ in range(_TEXTS)]
        store.load(range(given.rows), texts[0])
        keys = Keys(given.rows)
        for name, count in itertools.product(given.workloads, given.clients):
            with store.clients(count) as clients:
                operations = [
                    operation(client, WORKLOADS[name], keys, texts, seed)
                    for seed, client in enumerate(clients)
                ]
                figures = run(operations, given.seconds, store.cpu, _WARM_SECONDS)
            yield Measured(store.name, name, row_bytes, count, figures, os.getloadavg()[0])


@contextlib.contextmanager
def rezone_store(_directory: Path, *, partitions: int, apart: bool) -> Iterator[RezoneStore]:
    """Run a zone of three nodes."""
    with running_zone(3, partitions, 3) as zone:
        yield RezoneStore(zone, apart=apart)


def systems(
    partitions: int,
) -> dict[str, Callable[[Path], contextlib.AbstractContextManager[Store]]]:
    """Return how each system is started."""
    return {
        "rezone": functools.partial(rezone_store, partitions=partitions, apart=False),
        "rezone-apart": functools.partial(rezone_store, partitions=partitions, apart=True),
        "etcd": etcd_store,
        "redis1": functools.partial(redis_store, replicas=1),
        "redis2": functools.partial(redis_store, replicas=2),
        "postgres": postgres_store,
    }


def show(one: Measured) -> None:
    """Print one line."""
    figures = one.figures
    print(
        f"{one.system:<16}{one.workload:>8}{one.row_bytes:6}{one.clients:8}{figures.rate:10,.0f}"
        f"{figures.median_ms:9.1f}{figures.slowest_ms:9.1f}{figures.client_us:10,.0f}"
        f"{figures.servers_us:11,.0f}{one.load:7.1f}",
        flush=True,
    )


def report(found: Sequence[Measured], seconds: float) -> str:
    """Return the figures as JSON, with what they were measured on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    rows = [{**one._asdict(), "figures": None, **one.figures._asdict()} for one in found]
    for row in rows:
        del row["figures"]
    return json.dumps(
        {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": commit.stdout.strip(),
            "processors": os.cpu_count(),
            "seconds": seconds,
            "measured": rows,
        },
        indent=1,
    )


def main() -> None:
    """Measure one system after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = systems(1)
    usual = [name for name in names if name != "rezone-apart"]
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=10_000, help="how many there are at first")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--systems", nargs="+", choices=names, default=usual)
    parser.add_argument("--json", type=Path, help="where the figures go as JSON")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    print("operations a second; ms; processor time of an operation in us: clients, all servers")
    print(
        f"{'system':<16}{'workload':>8} bytes clients      rate   median     99 % client us"
        " servers us   load"
    )
    found: list[Measured] = []
    for name in given.systems:
        try:
            with (
                tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
                systems(given.partitions)[name](Path(directory)) as store,
            ):
                for one in measure(store, given):
                    show(one)
                    found.append(one)
        except NotHereError as error:
            print(f"left out: {error}")
        except (ConnectionError, TimeoutError) as error:
            print(f"the rest of {name} is left out, it has broken: {error}")
    if given.json is not None:
        given.json.write_text(report(found, given.seconds))


if __name__ == "__main__":
    main()
