"""What secondary indexes cost batch upserts, and what lookups by one take.

    PYTHONPATH=operator:benchmarks python benchmarks/storage/index_cost.py [--rows 200000]
        [--runs 3] [--indexes 0 1 3]

One partition with three replicas on three disks; batches of 1,000 rows of about 130 bytes by one
client, four under way; a zone for each number of indexes, one after the other, in turn. The ratio
is that of the medians to the zone without indexes.

- inserts, updates: until the last batch is acknowledged. Updates change the indexed columns.
- indexed: until, besides, the leader's index has all of it.
- CPU: of the three data nodes, per row written.
- lookup: ten rows of equal values, asked for one after the other; and the same rows read by key.
- added: an index is added to a zone without one when all rows are there twice, inserted and
  updated: until the leader has built it, and all three, while one client updates as fast as it can,
  and what that client keeps of its rate before, and of the one after, when the index costs it what
  any index does. Then another index, with nobody else there.
"""

import argparse
import contextlib
import functools
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa
from harness.zone import Zone, write_all
from replica_cluster import cluster

from rezone.client import TableClient
from rezone.wire.codec.indexes import id_of
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from rezone.wire.messages import ReplicaReport, ZoneConfig

_BATCH_ROWS = 1000
_BATCHES_AT_ONCE = 10  # of a round of updates
_EQUAL_ROWS = 10
_LOOKUPS = 200
_COLUMNS = (
    Column("id", ColumnType.INT64, nullable=False),
    Column("owner", ColumnType.STRING),
    Column("amount", ColumnType.INT64),
    Column("placed", ColumnType.TIMESTAMP_US),
    Column("note", ColumnType.STRING),
)
_INDEXES = (
    Index("by_owner", ("owner",)),
    Index("by_amount", ("amount", "owner")),
    Index("by_placed", ("placed",)),
)


def _batches(table: TableSchema, count: int, change: int) -> list[Any]:
    """Return rows of which each ten have an owner; `change` gives all of them other values."""
    schema = arrow_schema_of(table)
    found = []
    for start in range(0, count, _BATCH_ROWS):
        ids = range(start, start + _BATCH_ROWS)
        columns = [
            pa.array(ids, pa.int64()),
            pa.array([f"owner-{(i + change) // _EQUAL_ROWS:012d}" for i in ids]),
            pa.array([i * 7 + change for i in ids], pa.int64()),
            pa.array([i * 1000 + change for i in ids], pa.timestamp("us")),
            pa.array(["x" * 80] * _BATCH_ROWS),
        ]
        found.append(pa.record_batch(columns, schema=schema))
    return found


def _timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def _caught_up(report: ReplicaReport | None) -> bool:
    if report is None:
        return False
    return report.index is None or report.index.offset >= report.log_end_offset


@contextlib.contextmanager
def _zone(directory: Path, table: TableSchema) -> Iterator[tuple[Zone, TableClient]]:
    """Give one partition on three disks, which takes writes, and a client of it."""
    config = ZoneConfig(
        zone="bench", zone_uid="bench", partitions=1, table=table, min_in_sync_replicas=3
    )
    with cluster(directory, 3, processes=True, config=config) as coordinator:
        coordinator.create(0, (0, 1, 2))
        zone = Zone(coordinator)
        try:
            zone.wait("all streams", lambda: zone.streaming(0))
            with zone.client() as client:
                yield zone, client
        finally:
            zone.close()


def _run(directory: Path, indexes: int, count: int) -> dict[str, float]:
    table = TableSchema(_COLUMNS, ("id",), _INDEXES[:indexes])
    inserts, updates = (_batches(table, count, change) for change in (0, 5))
    with _zone(directory, table) as (zone, client):
        client.write(inserts[0])
        before = sum(zone.cpu_seconds().values())
        found = {}
        for what, batches in (("inserts", inserts), ("updates", updates)):
            begun = time.monotonic()
            found[what] = count / _timed(functools.partial(write_all, client, batches))
            zone.wait("indexed", lambda: _caught_up(zone.replica(0, 0)))
            found[f"{what}, indexed"] = count / (time.monotonic() - begun)
        cpu = sum(zone.cpu_seconds().values()) - before
        found["CPU us per row"] = cpu * 1e6 / (2 * count)
        if indexes:
            found |= _lookups(client, count)
        return found


def _added(directory: Path, count: int) -> dict[str, float]:
    """Return what it takes to add indexes to rows that are there, under updates and at rest."""
    table = TableSchema(_COLUMNS, ("id",))
    inserts, updates = (_batches(table, count, change) for change in (0, 5))
    with _zone(directory, table) as (zone, client):
        write_all(client, inserts)
        before = count / _timed(lambda: write_all(client, updates))
        zone.wait("applied", lambda: all(_applied(zone.replica(n, 0)) for n in range(3)))
        found: dict[str, float] = {}
        with Updates(client, updates) as load:
            found["added, updates, s"] = _timed(lambda: _add(zone, 1, (0,)))
            meanwhile = load.rate()
            found["on all replicas, s"] = _timed(lambda: _add(zone, 1, (0, 1, 2)))
        found["on all replicas, s"] += found["added, updates, s"]
        after = count / _timed(lambda: write_all(client, updates))
        found["added, of before"] = meanwhile / before
        found["added, of after"] = meanwhile / after
        found["added, at rest, s"] = _timed(lambda: _add(zone, 2, (0,)))
        return found


class Updates:
    """A client that writes the same batches in turn, until this is left."""

    def __init__(self, client: TableClient, batches: list[Any]) -> None:
        self._client = client
        self._batches = batches[:_BATCHES_AT_ONCE]
        self._stop = threading.Event()
        self._rows = 0
        self._begun = 0.0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            write_all(self._client, self._batches)
            self._rows += len(self._batches) * _BATCH_ROWS

    def rate(self) -> float:
        """Return the rows a second until now."""
        return self._rows / (time.monotonic() - self._begun)

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _add(zone: Zone, indexes: int, nodes: tuple[int, ...]) -> None:
    """Give the zone so many indexes, and wait until these nodes have built them."""
    coordinator = zone.coordinator
    table = TableSchema(_COLUMNS, ("id",), _INDEXES[:indexes])
    coordinator.config = msgspec.structs.replace(coordinator.config, table=table)
    coordinator.configure()
    wanted = {id_of(index) for index in table.indexes}
    zone.wait("built", lambda: all(wanted <= _built(zone.replica(n, 0)) for n in nodes))


def _built(report: ReplicaReport | None) -> set[bytes]:
    return {*report.index.built} if report is not None and report.index is not None else set()


def _applied(report: ReplicaReport | None) -> bool:
    return report is not None and report.kv_applied_offset == report.log_end_offset


def _lookups(client: TableClient, count: int) -> dict[str, float]:
    step = max(1, count // _EQUAL_ROWS // _LOOKUPS)
    owners = [f"owner-{(1 + n * step):012d}" for n in range(_LOOKUPS)]
    pages: list[Any] = []

    def look_up() -> None:
        pages.extend(client.lookup("by_owner", (owner,), (owner,)) for owner in owners)

    seconds = _timed(look_up)
    keys = [page.rows.select(["id"]) for page in pages]
    assert all(page.num_rows == _EQUAL_ROWS for page in keys)
    read = _timed(lambda: [client.read(part) for part in keys])
    return {
        "lookup ms": seconds * 1e3 / len(owners),
        "read by key ms": read * 1e3 / len(owners),
    }


def main() -> None:
    """Measure in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="rows per run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--indexes", type=int, nargs="+", default=[0, 1, 3], choices=range(4))
    options = parser.parse_args()
    count = max(1, options.rows // _BATCH_ROWS) * _BATCH_ROWS
    found: dict[int, dict[str, list[float]]] = {number: {} for number in options.indexes}
    for _ in range(options.runs):
        for number, figures in found.items():
            directory = Path(tempfile.mkdtemp(prefix="rezone-bench-"))
            try:
                measured = _run(directory / "run", number, count)
                if number == 0:
                    measured |= _added(directory / "added", count)
                for what, figure in measured.items():
                    figures.setdefault(what, []).append(figure)
            finally:
                shutil.rmtree(directory)
    print(f"{count:,} rows; medians of {options.runs}; in brackets: ratio to no index")
    base = found.get(0, {})
    for number, figures in found.items():
        print(f"{number} indexes")
        for what, values in figures.items():
            middle = statistics.median(values)
            ratio = f"({middle / statistics.median(base[what]):.2f})" if what in base else ""
            print(f"  {what:20}{middle:14,.2f} {ratio}")


if __name__ == "__main__":
    main()
