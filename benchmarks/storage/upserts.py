"""Batch upserts with copies on several disks: one leader of Rezone beside Redis and PostgreSQL.

    PYTHONPATH=operator:benchmarks python benchmarks/storage/upserts.py [--mb 60] [--runs 3]
        [--peers redis,postgres]

Each writes the same number of rows of 100 bytes and of 1 KiB in batches of 1,000, from one client:

- Rezone: one partition with three replicas, each batch acknowledged by all three disks; up to
  four batches under way. Then the same rows again, which are updates.
- Redis: SET, pipelined by 1,000, `appendfsync always` at both, then WAIT 1: in the replica's
  memory, and on its disk soon after.
- PostgreSQL: COPY of 1,000 rows each, committed when the one synchronous standby has flushed it.
  COPY only inserts; it has no upsert.

One after the other, in turn; medians of the runs. MB = 10^6 bytes of values. A peer that is not
installed is left out, and that is said.
"""

import argparse
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from harness.peers import Postgres, Redis, pause, redis_server
from harness.zone import write_all
from replica_cluster import cluster

from rezone.client import TableClient
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.messages import ZoneConfig

_BATCH_ROWS = 1000
_SIZES = {"100 bytes": 100, "1 KiB": 1024}
_ALPHABET = bytes(range(48, 112)).replace(b"\\", b"-")


def _values(size: int) -> list[bytes]:
    """Return values that do not compress well, of letters that COPY need not quote."""
    rng = random.Random(11)
    return [bytes(rng.choices(_ALPHABET, k=size)) for _ in range(_BATCH_ROWS)]


def _key(number: int) -> bytes:
    return b"%016d" % number


def _rezone(directory: Path, count: int, size: int) -> dict[str, float]:
    config = ZoneConfig(zone="bench", zone_uid="bench", partitions=1, min_in_sync_replicas=3)
    schema, values = arrow_schema_of(config.table), _values(size)
    batches = [
        pa.record_batch(
            [
                pa.array([_key(n) for n in range(start, start + _BATCH_ROWS)], pa.binary()),
                pa.array(values, pa.binary()),
            ],
            schema=schema,
        )
        for start in range(0, count, _BATCH_ROWS)
    ]
    with cluster(directory, 3, processes=True, config=config) as coordinator:
        coordinator.create(0, (0, 1, 2))
        with TableClient([node.address for node in coordinator.nodes.values()]) as client:
            client.write(batches[0])
            return {
                "Rezone, inserts": _timed(lambda: write_all(client, batches)),
                "Rezone, updates": _timed(lambda: write_all(client, batches)),
            }


def _redis(directory: Path, count: int, size: int) -> dict[str, float]:
    sync = ("--appendfsync", "always")
    with (
        redis_server(directory / "redis0", *sync) as first,
        redis_server(directory / "redis1", *sync) as second,
    ):
        replica = Redis(second)
        replica.send((b"REPLICAOF", b"127.0.0.1", str(first).encode()))
        master, values = Redis(first), _values(size)
        while master.send((b"WAIT", b"1", b"1000")) != [b":1\r\n"]:
            pause(0.1)

        def write() -> None:
            for start in range(0, count, _BATCH_ROWS):
                master.send(*((b"SET", _key(start + i), v) for i, v in enumerate(values)))
                assert master.send((b"WAIT", b"1", b"10000")) == [b":1\r\n"]

        seconds = {"Redis, inserts": _timed(write), "Redis, updates": _timed(write)}
        master.close()
        replica.close()
        return seconds


def _postgres(directory: Path, count: int, size: int) -> dict[str, float]:
    directory.chmod(0o755)
    primary, standby = Postgres(directory / "pg0"), Postgres(directory / "pg1")
    try:
        primary.start(synchronous_standby_names="standby", synchronous_commit="on")
        standby.start_standby(primary, "standby")
        primary.sql("set synchronous_commit = local; create table t (k text primary key, v text)")
        script = b"".join(_copies(count, size))
        streaming = "select count(*) from pg_stat_replication where sync_state = 'sync'"
        while primary.sql(streaming) != "1":
            pause(0.05)
        load = ("psql", *primary.connection, "-q", "-v", "ON_ERROR_STOP=1")
        return {"PostgreSQL, COPY": _timed(lambda: primary.run(*load, stdin=script))}
    finally:
        primary.stop()
        standby.stop()


def _copies(count: int, size: int) -> Iterator[bytes]:
    values = _values(size)
    for start in range(0, count, _BATCH_ROWS):
        yield b"copy t from stdin;\n"
        yield b"".join(b"%b\t%b\n" % (_key(start + i), v) for i, v in enumerate(values))
        yield b"\\.\n"


def _timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


_WAYS = {"rezone": _rezone, "redis": _redis, "postgres": _postgres}
_PROGRAMS = {"redis": "redis-server", "postgres": "/usr/lib/postgresql/15/bin/postgres"}


def _measure(ways: list[str], runs: int, count: int, size: int) -> dict[str, float]:
    """Return the median seconds by what was done."""
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for way in ways:
            directory = Path(tempfile.mkdtemp(prefix="rezone-bench-"))
            try:
                for what, seconds in _WAYS[way](directory, count, size).items():
                    found.setdefault(what, []).append(seconds)
            finally:
                # PostgreSQL's files are another user's.
                subprocess.run(["rm", "-rf", str(directory)], check=True)
    return {what: statistics.median(seconds) for what, seconds in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=60, help="values per run and size")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers", default="redis,postgres")
    options = parser.parse_args()
    ways = ["rezone"]
    for peer in filter(None, options.peers.split(",")):
        if shutil.which(_PROGRAMS[peer]):
            ways.append(peer)
        else:
            print(f"{peer} is not installed: left out")
    for name, size in _SIZES.items():
        count = max(1, options.mb * 10**6 // size // _BATCH_ROWS) * _BATCH_ROWS
        print(f"{count:,} rows of {name}, batches of {_BATCH_ROWS:,}; medians of {options.runs}")
        medians = _measure(ways, options.runs, count, size)
        base = medians["Rezone, inserts"]
        for what, seconds in medians.items():
            rate, ratio = count / seconds, base / seconds
            print(f"  {what:20}{rate:12,.0f} rows/s{rate * size / 1e6:9.1f} MB/s{ratio:8.2f}")


if __name__ == "__main__":
    main()
