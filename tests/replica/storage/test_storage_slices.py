"""Calls that hold the interpreter are short: slices by rows too, no disk while a file is ended."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from storage_kit import Writer, config, rid

from rezone.replica.engines import open_engine
from rezone.replica.engines.rocks_settings import RocksSettings
from rezone.replica.store import PartitionStore
from rezone.wire.messages import EngineKind

ROWS_MAX = 10
KEY = b"k" * 24
MIB = 1 << 20


def note_slices(store: PartitionStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with the rows of each write to the engine."""
    sizes: list[int] = []
    apply = store.engine.apply

    def noting(puts: list[tuple[bytes, bytes]], *rest: object) -> None:
        sizes.append(len(puts))
        apply(puts, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store.engine, "apply", noting)
    return sizes


def test_slices_of_small_rows_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of rows of 100 bytes would hold up every thread for 5 to 10 ms."""
    slices = config(apply_slice_rows=ROWS_MAX, apply_slice_bytes=1 << 20)
    store = PartitionStore.open(tmp_path / "p", slices)
    writer = Writer(store)
    sizes = note_slices(store, monkeypatch)
    for number in range(7):
        end = writer.write({rid(100 + 4 * number + i): b"small" for i in range(4)})
    end = writer.write({rid(i): b"of one entry" for i in range(45)})
    store.apply_to(end)
    assert sum(sizes) == 7 * 4 + 45
    assert max(sizes) <= ROWS_MAX
    # Entries are put together as far as that goes.
    assert len(sizes) <= 4 + 5
    assert store.applied == end
    store.close()


def test_a_sorted_file_goes_to_the_disk_as_it_grows_and_is_ended_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending it, RocksDB would wait for the disk and let no other thread run meanwhile.

    Or all of it would be written at its end, and syncs of logs on that disk would wait.
    """
    synced: list[int] = []
    engine = open_engine(EngineKind.ROCKSDB, tmp_path / "engine", RocksSettings())
    run, path = engine.sorted_run(tmp_path, "run"), tmp_path / "run.sst"
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    noise = random.Random(1)
    for part in range(50):
        keys = [KEY + bytes([part, i]) + bytes(8) for i in range(100)]
        run.add(keys, [b"\1" + noise.randbytes(1000) for _ in keys])
        written = 100_000 * (part + 1)
        assert written - 3 * MIB < path.stat().st_size <= 1.1 * written
    assert not synced
    run.seal()
    assert synced[0] == path.stat().st_size > 5_000_000
    run.ingest()
    assert not path.exists()
    chains = engine.scan_chains(b"", None, rows_max=10_000, bytes_max=1 << 30)
    assert chains.end
    assert len(chains.keys) == 5000
    engine.close()
