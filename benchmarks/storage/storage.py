"""Storage rates of one partition beside plain rocksdict in the same run.

    PYTHONPATH=operator:benchmarks python benchmarks/storage/storage.py [--mb 200] [--runs 3]
        [--compression none]

Rows of 1 KiB and 100 bytes (value and key). Each figure is the median of the runs in MB/s
(10^6 bytes of keys and values). "plain" does the same with bare rocksdict calls and no format.
"""

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rocksdict

from rezone.storage.copies.bulk import BulkLoader
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.storage.log.entry import build_entry, rows_batch
from rezone.storage.snapshot.snapshot import SnapshotBatch
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from rezone.wire.codec.keyspace import hash_key, row_id

Rows = tuple[list[bytes], list[bytes]]


def rows_of(row_bytes: int, total_bytes: int) -> Rows:
    """Return rows in random order, key of 8 bytes, values that do not compress."""
    count = total_bytes // row_bytes
    width = row_bytes - 8 - 18
    noise = np.random.default_rng(7).bytes(width * 1000)
    keys = [i.to_bytes(8, "big") for i in range(count)]
    ids = [row_id(hash_key(key), key) for key in keys]
    values = [noise[i % 1000 * width : (i % 1000 + 1) * width] for i in range(count)]
    return ids, values


class Bench:
    """One row size: collects seconds per figure over the runs."""

    def __init__(self, row_bytes: int, total_bytes: int, config: StoreConfig) -> None:
        self.rows = rows_of(row_bytes, total_bytes)
        self.config = config
        self.size = sum(map(len, self.rows[0])) + sum(map(len, self.rows[1]))
        self.seconds: dict[str, list[float]] = {}

    @staticmethod
    def _load(loader: BulkLoader, batches: list[SnapshotBatch]) -> None:
        for batch, mark in batches:
            loader.write(batch, mark)

    def timed(self, name: str, act: Callable[[], object]) -> None:
        """Run once and remember how long it took."""
        started = time.perf_counter()
        act()
        self.seconds.setdefault(name, []).append(time.perf_counter() - started)

    def run(self, directory: Path) -> None:
        """Do all steps once."""
        self.plain(directory / "plain", rocksdict.Options(raw_mode=True))
        source = PartitionStore.open(directory / "source", self.config)
        entries = self.entries()
        self.timed(
            "append + sync each", lambda: [(source.append(e), source.sync()) for e in entries]
        )
        self.timed("apply", lambda: source.apply_to(source.log_end))
        self.timed("apply: flush", source.flush)
        batches: list[SnapshotBatch] = []
        with source.outgoing.open_rows("bench") as snapshot:
            self.timed("snapshot scan -> batches", lambda: batches.extend(snapshot))
            target = PartitionStore.open(directory / "target", self.config)
            loader = target.incoming.begin(snapshot.header, "bench")
            assert isinstance(loader, BulkLoader)
            self.timed("bulk load", lambda: self._load(loader, batches))
            self.timed("bulk load: finish", lambda: loader.finish(snapshot.trailer))
        batches.clear()
        self.timed(
            "snapshot of bulk-loaded", lambda: [None for _ in target.outgoing.open_rows("again")]
        )
        self.timed("digest", target.reader.digest)
        ids = self.rows[0][:: max(len(self.rows[0]) // 20_000, 1)]
        started = time.perf_counter()
        for i in range(0, len(ids), 100):
            target.reader.newest(ids[i : i + 100])
        rate = len(ids) / (time.perf_counter() - started)
        self.seconds.setdefault("reads/s (100 a call)", []).append(rate)
        source.close()
        target.close()

    def entries(self) -> list[bytes]:
        """Return the rows as log entries of 500 rows, in the order of a writer (unsorted)."""
        ids, values = self.rows
        return [
            build_entry(
                rows_batch(ids[i : i + 500], [0] * len(ids[i : i + 500]), values[i : i + 500]),
                leader_epoch=1,
                base_offset=i,
                commit_time=i + 1,
            )
            for i in range(0, len(ids), 500)
        ]

    def plain(self, path: Path, options: rocksdict.Options) -> None:
        """Do what the engine does with bare rocksdict calls."""
        options.create_if_missing(create_if_missing=True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        no_wal = rocksdict.WriteOptions()
        no_wal.disable_wal = True
        pairs = [(k + bytes(8), b"\0" + v) for k, v in zip(*self.rows, strict=True)]
        database = rocksdict.Rdict(str(path), options)

        def write() -> None:
            for i in range(0, len(pairs), 1000):
                batch = rocksdict.WriteBatch(raw_mode=True)
                for key, value in pairs[i : i + 1000]:
                    batch.put(key, value)
                database.write(batch, no_wal)

        def scan() -> None:
            items = database.items()
            while list(itertools.islice(items, 1000)):
                pass

        def ingest() -> None:
            writer = rocksdict.SstFileWriter(options)
            writer.open(str(path / "bulk.sst"))
            for key, value in ordered:
                writer[key] = value
            writer.finish()
            move = rocksdict.IngestExternalFileOptions()
            move.set_move_files(True)
            other.ingest_external_file([str(path / "bulk.sst")], move)

        self.timed("plain: write batches, no WAL", write)
        database.flush()
        self.timed("plain: iterate", scan)
        ordered = sorted(pairs)
        other = rocksdict.Rdict(str(path / "other"), options)
        self.timed("plain: sst + ingest", ingest)
        other.close()
        database.close()

    def report(self) -> None:
        """Print the medians."""
        for name, values in self.seconds.items():
            middle = statistics.median(values)
            figure = middle if "/s" in name else self.size / middle / 1e6
            print(f"  {name:32} {figure:12,.0f}")


def main() -> None:
    """Run for both row sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--compression", default="none")
    given = parser.parse_args()
    config = StoreConfig(
        log_segment_bytes=64 << 20, rocks=RocksSettings(compression=given.compression)
    )
    sys.setswitchinterval(0.0002)
    for row_bytes in (1024, 100):
        bench = Bench(row_bytes, given.mb * 10**6, config)
        for _ in range(given.runs):
            directory = Path(tempfile.mkdtemp(prefix="rezone-storage-"))
            try:
                bench.run(directory)
            finally:
                shutil.rmtree(directory)
        print(f"rows of {row_bytes} bytes, {given.mb} MB, {given.runs} runs: MB/s")
        bench.report()


if __name__ == "__main__":
    main()
