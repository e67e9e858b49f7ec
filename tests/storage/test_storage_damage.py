"""Every kind of file that a partition's directory holds, damaged in every way: never a wrong row.

A case passes when the partition is whole all the same, or is quarantined as damaged and counts for
nobody any more, or tells of the damage when it is read. `files` are listed from a real directory,
so a new kind of file is damaged here as soon as there is one.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from storage_kit import Writer, config, copy_directory, rid, stored_rows

from rezone.storage.disk.partition_directory import quarantine_name
from rezone.storage.engines.base import time_suffix
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.storage.state.meta import PartitionMeta
from rezone.storage.store import PartitionStore
from rezone.storage.upkeep.quarantine import is_replica, open_store
from rezone.wire.errors import CorruptionError, RezoneError
from rezone.wire.messages import FailoverEntry, Role

SEED = 20261121
ROWS = 60
SECTOR = 512


class Whole(NamedTuple):
    """A partition's directory as a crash of its process leaves it, and what is in it."""

    directory: Path
    rows: dict[bytes, bytes]
    log_start: int
    log_end: int
    applied: int
    log: bytes
    meta: PartitionMeta


def log_of(store: PartitionStore) -> bytes:
    """Return the log, as followers read it."""
    data, offset = b"", store.log_start
    while offset < store.log_end and (part := store.read(offset, 1 << 20)):
        data += part
        offset += len(part) and store.log_end - offset
    return data


def make(directory: Path) -> Whole:
    """Write a partition with log of several files, trimmed, and an engine that needs its files."""
    store = PartitionStore.open(directory / "p", config(partition=3, log_segment_bytes=2048))
    store.update_meta(
        coordinator_epoch=4,
        leader_epoch=5,
        role=Role.FOLLOWER,
        partition_uuid="u",
        failover_log=(FailoverEntry("u", 0),),
    )
    writer = Writer(store, epoch=5)
    value = random.Random(SEED)
    for step in range(60):
        writer.write({rid(step * 7 % ROWS + i): value.randbytes(40) for i in range(3)})
        if step in {20, 40}:
            store.note_committed(store.log_end)
            store.apply_to(store.log_end)
            store.flush()
            store.trim(0, store.log_end)
    store.sync()
    store.apply_to(store.log_end - 30)
    store.note_committed(store.log_end)
    store.update_meta(leader_epoch=6)
    copy_directory(directory / "p", directory / "crash")
    whole = Whole(
        directory=directory / "crash",
        rows=writer.visible(store.log_end),
        log_start=store.log_start,
        log_end=store.log_end,
        applied=store.applied,
        log=log_of(store),
        meta=store.meta,
    )
    assert whole.log_start > 0
    store.close()
    return whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the same partition for all cases, which copy it."""
    return make(tmp_path_factory.mktemp("whole"))


def flip(data: bytes, at: float) -> bytes:
    """Turn one bit over, that far into the file."""
    damaged = bytearray(data)
    damaged[min(int(len(data) * at), len(data) - 1)] ^= 0x10
    return bytes(damaged)


def torn(data: bytes) -> bytes:
    """Return what is left when a write reached only some sectors: others have an older content."""
    start = max(len(data) * 2 // 3 // SECTOR * SECTOR, 0)
    return data[:start] + random.Random(SEED).randbytes(len(data) - start)


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "bit flipped in the head": lambda data: flip(data, 0.0),
    "bit flipped early": lambda data: flip(data, 0.2),
    "bit flipped in the middle": lambda data: flip(data, 0.5),
    "bit flipped at the end": lambda data: flip(data, 1.0),
    "cut in the middle": lambda data: data[: len(data) // 2],
    "cut at the end": lambda data: data[:-1],
    "emptied": lambda _: b"",
    "deleted": lambda _: None,
    "half of zeros": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "all of zeros": lambda data: bytes(len(data)),
    "torn": torn,
}


def files(directory: Path) -> list[Path]:
    """Return the files of a partition, but those that are empty and RocksDB's own notes."""
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return [p for p in found if p.stat().st_size and p.name not in {"LOG", "LOCK"}]


def strike(path: Path, how: str) -> None:
    """Damage a file."""
    damaged = DAMAGES[how](path.read_bytes())
    path.unlink()
    if damaged is not None:
        path.write_bytes(damaged)


def outcome(directory: Path, whole: Whole) -> str:
    """Open a damaged partition and read all of it; return what became of it."""
    before = {p.relative_to(directory): p.read_bytes() for p in files(directory)}
    assert is_replica(directory)
    store = open_store(directory, config(partition=3, log_segment_bytes=2048))
    noticed: list[CorruptionError] = []
    store.tell_damage(noticed.append)
    try:
        if store.meta.needs_snapshot:
            return quarantined(store, directory, before)
        assert store.log_end == whole.log_end, "acknowledged rows are gone, and nobody says so"
        assert (store.meta.coordinator_epoch, store.meta.leader_epoch) == (4, 6)
        try:
            store.apply_to(store.log_end)
            read_all(store, whole)
        except CorruptionError:
            assert noticed, "whoever reads has an error, and the replica does not know"
            return "noticed"
        return "whole"
    finally:
        store.close()


def quarantined(store: PartitionStore, directory: Path, before: dict[Path, bytes]) -> str:
    """Check a replica that took a damaged one's place: it has nothing, and nothing was deleted."""
    assert store.meta.damage, "no reason is told"
    assert store.meta.role is Role.LEARNER
    assert (store.log_end, stored_rows(store)) == (0, {})
    quarantine = quarantine_name(directory)
    kept = {p.relative_to(quarantine): p.read_bytes() for p in files(quarantine)}
    data = {p: content for p, content in before.items() if p.suffix in {".sst", ".log", ".journal"}}
    missing = {
        p for p, content in data.items() if kept.get(p) != content and "engine" not in str(p)
    }
    assert not missing, "the last copy may be gone"
    assert {p for p in data if p.suffix == ".sst"} <= set(kept)
    return "quarantined"


def read_all(store: PartitionStore, whole: Whole) -> None:
    """Read all rows in every way, and the log; wrong ones fail the case."""
    assert stored_rows(store) == whole.rows
    ids = [rid(key) for key in range(ROWS + 10)]
    assert store.reader.newest(ids) == [whole.rows.get(row) for row in ids]
    with store.outgoing.open_rows("reader") as snapshot:
        sent = {row for item in snapshot for row in item.batch.column(0).to_pylist()}
    assert sent == set(whole.rows)
    if store.log_start <= whole.log_start:
        assert log_of(store) == whole.log


def cases() -> Iterator[tuple[str, str]]:
    """Return every file of a partition with every damage; the files' names without numbers."""
    for kind in (
        "log/oldest",
        "log/middle",
        "log/newest",
        "engine/oldest.sst",
        "engine/newest.sst",
        "engine/CURRENT",
        "engine/IDENTITY",
        "engine/MANIFEST",
        "engine/OPTIONS",
        "engine/rezone-engine-id",
        "engine/rocksdict-config.json",
        "marks",
        "meta.journal",
    ):
        for how in DAMAGES:
            yield kind, how


def by_kind(directory: Path) -> dict[str, Path]:
    """Return a partition's files by the names of `cases`; every file has one."""
    found: dict[str, Path] = {}
    segments = sorted((directory / "log").iterdir())
    assert len(segments) > 2
    for place, number in (("oldest", 0), ("middle", len(segments) // 2), ("newest", -1)):
        found[f"log/{place}"] = segments[number]
    tables = sorted((directory / "engine").glob("*.sst"))
    found["engine/oldest.sst"], found["engine/newest.sst"] = tables[0], tables[-1]
    known = {*segments, *tables}
    for path in files(directory):
        if path not in known:
            name = str(path.relative_to(directory))
            found[name.partition("-0")[0]] = path
    return found


def test_every_file_of_a_partition_is_among_the_cases(whole: Whole) -> None:
    """A kind of file would come into being whose damage nobody has thought of."""
    assert set(by_kind(whole.directory)) == {kind for kind, _ in cases()}


SURE = {
    ("log/newest", "cut in the middle"),
    ("log/newest", "cut at the end"),
    ("log/newest", "deleted"),
    ("log/newest", "bit flipped in the middle"),
    ("log/newest", "half of zeros"),
    ("log/middle", "deleted"),
    ("engine/CURRENT", "deleted"),
    ("engine/MANIFEST", "cut in the middle"),
    ("meta.journal", "deleted"),
    ("meta.journal", "cut at the end"),
    ("meta.journal", "cut in the middle"),
    ("meta.journal", "bit flipped at the end"),
}
"""What must never pass for whole: each of these was once, or reads like an older state."""


@pytest.mark.parametrize(("kind", "how"), list(cases()))
def test_damage_is_never_served(tmp_path: Path, whole: Whole, kind: str, how: str) -> None:
    """A damaged file would be read as rows, as fewer rows, or as promises never made."""
    directory = tmp_path / "3"
    shutil.copytree(whole.directory, directory)
    strike(by_kind(directory)[kind], how)
    found = outcome(directory, whole)
    assert found != "whole" or (kind, how) not in SURE


def test_a_scan_ends_with_an_error_at_a_damaged_block(tmp_path: Path) -> None:
    """The library's iterator ends there as at its end: half of the rows would be all."""
    engine = RocksEngine(tmp_path, RocksSettings())
    keys = [b"%020d" % i + time_suffix(1) for i in range(5000)]
    value = random.Random(SEED)
    engine.apply([(key, b"\x00" + value.randbytes(200)) for key in keys], (), {})
    engine.flush()
    engine.close()
    (table,) = tmp_path.glob("*.sst")
    table.write_bytes(flip(table.read_bytes(), 0.5))
    engine = RocksEngine(tmp_path, RocksSettings())
    noticed: list[RezoneError] = []
    engine.on_damage = noticed.append
    with pytest.raises(CorruptionError):
        engine.scan_chains(b"", None, rows_max=10_000, bytes_max=1 << 30)
    rows = [key[:-8] for key in keys]
    with pytest.raises(CorruptionError):
        engine.chains_of(rows)
    with pytest.raises(CorruptionError):
        engine.newest(rows, 1)
    assert len(noticed) == 3
    engine.close()


def test_a_crash_before_the_first_fact_leaves_no_replica(tmp_path: Path) -> None:
    """An empty replica would open as one that is in sync, and vote without its rows."""
    (tmp_path / "7" / "log").mkdir(parents=True)
    assert not is_replica(tmp_path / "7")
    store = PartitionStore.open(tmp_path / "8", config())
    assert not is_replica(tmp_path / "8")
    store.update_meta(leader_epoch=1)
    assert is_replica(tmp_path / "8")
    store.close()
    (tmp_path / "8" / "meta.journal").unlink()
    assert is_replica(tmp_path / "8"), "its facts are gone: it is damaged, not new"


def test_what_a_rollback_has_cut_is_not_missed(tmp_path: Path, whole: Whole) -> None:
    """Every replica that was rolled back would count as damaged at its next start."""
    directory = tmp_path / "3"
    shutil.copytree(whole.directory, directory)
    settings = config(partition=3, log_segment_bytes=2048)
    store = PartitionStore.open(directory, settings)
    store.truncate(whole.log_end - 3)
    copy_directory(directory, tmp_path / "crash")
    store.close()
    again = PartitionStore.open(tmp_path / "crash", settings)
    assert again.log_end == whole.log_end - 3
    again.reset()
    again.close()
    last = PartitionStore.open(tmp_path / "crash", settings)
    assert last.log_end == 0
    last.close()


def test_old_log_that_is_damaged_is_given_up_when_the_engine_has_it(
    tmp_path: Path, whole: Whole
) -> None:
    """A follower would ask for it for ever, or a leader step down for log that nobody needs."""
    directory = tmp_path / "3"
    shutil.copytree(whole.directory, directory)
    path = by_kind(directory)["log/oldest"]
    store = PartitionStore.open(directory, config(partition=3, log_segment_bytes=2048))
    store.apply_to(store.log_end)
    strike(path, "bit flipped in the middle")
    noticed: list[CorruptionError] = []
    store.tell_damage(noticed.append)
    with pytest.raises(CorruptionError):
        log_of(store)
    offset = noticed[0].details["log_offset"]
    assert isinstance(offset, int)
    assert store.give_up_log(offset)
    assert store.log_start > whole.log_start
    kept_from = store.log_start
    assert store.give_up_log(offset), "two readers came upon it, and the second is told later"
    assert store.log_start == kept_from, "whole log is given up"
    read_all(store, whole)
    assert not store.give_up_log(store.log_end - 1), "the newest file is still needed"
    store.close()
