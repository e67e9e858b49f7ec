"""The simulated disk itself, and what the product must sync for its files to outlive a crash."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rezone.storage.disk import syncing
from rezone.storage.engines.base import INDEX_PREFIX, time_suffix
from rezone.storage.log.entry import build_entry, rows_batch
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from simulation.nodes.disk import Disks, MachineDiedError, TrackedDisk, torn
from simulation.nodes.file_engine import INDEX_END, FileEngine

SEEDS = range(40)


def test_a_crash_takes_what_was_not_synced(tmp_path: Path) -> None:
    """A disk that forgets nothing would let every missing sync pass, and one that lies none."""
    left = set()
    for seed in SEEDS:
        disks = Disks(tmp_path / str(seed), ["a"], random.Random(seed))
        root = disks.of["a"].root
        with disks.tracked():
            syncing.write_whole(root / "kept", b"synced")
            with (root / "kept").open("ab") as file:
                file.write(b" and not")
            (root / "new").write_bytes(b"")
            disks.of["a"].crash()
            content = (root / "kept").read_bytes()
            assert content.startswith(b"synced"), "what was synced is gone"
            left.add((len(content), (root / "new").exists()))
    assert {len(b"synced"), len(b"synced and not")} <= {size for size, _ in left}
    assert {there for _, there in left} == {True, False}


def test_sectors_tear_and_are_never_older_than_the_sync() -> None:
    """A file written over in place would come back as something that was never written."""
    old, new = b"o" * 1200, b"n" * 1200
    seen = {torn(old, new, random.Random(seed)) for seed in SEEDS}
    assert {old, new} < seen
    assert all({*each[at : at + 512]} in ({*b"o"}, {*b"n"}) for each in seen for at in (0, 512))
    grown = {torn(old, old + new, random.Random(seed)) for seed in SEEDS}
    assert all(each.startswith(old) for each in grown)
    assert any(0 in each[len(old) :] for each in grown), "no sector was ever left unwritten"


def test_a_machine_dies_before_or_after_a_sync(tmp_path: Path) -> None:
    """What is acknowledged only after a sync would never be caught between the two."""
    left = set()
    for seed in SEEDS:
        disks = Disks(tmp_path / str(seed), ["a"], random.Random(seed))
        disk = disks.of["a"]
        with disks.tracked():
            disk.dies_in = 3  # the second file's own; its directory comes after it
            syncing.write_whole(disk.root / "first", b"1")
            with pytest.raises(MachineDiedError):
                syncing.write_whole(disk.root / "second", b"2")
            disk.crash()
            left.add(tuple(sorted(path.name for path in disk.root.iterdir())))
    assert left == {("first",), ("first", "second.tmp")}


def test_an_engine_comes_back_as_after_one_of_its_steps(tmp_path: Path) -> None:
    """Rows and entries of indexes would go that were flushed, or half a step be there."""
    left = set()
    for seed in SEEDS:
        rng = random.Random(seed)
        disks = Disks(tmp_path / str(seed), ["a"], rng)
        path = disks.of["a"].root / "engine"
        with disks.tracked():
            engine = FileEngine(path, lambda: "new", lambda rng=rng: rng.random() < 0.2)  # type: ignore[misc]
            syncing.sync_directory(path.parent)
            for number in range(6):
                pairs = [
                    (prefix + time_suffix(number), b"\0v")
                    for prefix in (b"row", INDEX_PREFIX + b"id")
                ]
                engine.apply(pairs, (), {b"applied": b"%d" % number})
                if number == 2:
                    engine.flush()
            disks.of["a"].crash()
            engine = FileEngine(path, lambda: "newer")
            applied = int(engine.state()[b"applied"])
            for start, end in ((b"", None), (INDEX_PREFIX, INDEX_END)):
                chains = engine.scan_chains(start, end, rows_max=100, bytes_max=10_000)
                assert len(chains.keys) == applied + 1
        left.add(applied)
    assert left == {2, 3, 4, 5}


def opened(disk: TrackedDisk) -> PartitionStore:
    """Open a partition on a disk as a data node does."""
    config = StoreConfig(open_engine=lambda _kind, path, _rocks: FileEngine(path, lambda: "new"))
    return PartitionStore.open(disk.root / "partitions" / "0", config)


def test_a_log_goes_on_behind_its_last_whole_entry(tmp_path: Path) -> None:
    """A torn entry would be taken for rows, or one that was synced be cut off."""
    kept = set()
    for seed in SEEDS:
        disks = Disks(tmp_path / str(seed), ["a"], random.Random(seed))
        with disks.tracked():
            store = opened(disks.of["a"])
            store.update_meta(leader_epoch=1)
            written = []
            for offset in range(4):
                rows = rows_batch([b"row"], [0], [b"%d" % offset * 700])
                entry = build_entry(
                    rows, leader_epoch=1, base_offset=offset, commit_time=offset + 1
                )
                written.append(entry)
                store.append(entry)
                if offset == 0:
                    store.sync()
            disks.of["a"].crash()
            store = opened(disks.of["a"])
            assert store.read(0, 1 << 20) == b"".join(written[: store.log_end])
            kept.add(store.log_end)
    assert {1, 2, 3} <= kept


def test_an_engine_made_by_a_reset_is_there_after_a_crash(tmp_path: Path) -> None:
    """The rows of a copy would go, or those of before come back, with a name that is not synced."""
    for seed in SEEDS:
        disks = Disks(tmp_path / str(seed), ["a"], random.Random(seed))
        with disks.tracked():
            store = opened(disks.of["a"])
            store.update_meta(leader_epoch=1)
            for _ in range(2):
                rows = rows_batch([b"row"], [0], [b"value"])
                store.append(build_entry(rows, leader_epoch=1, base_offset=0, commit_time=1))
                store.apply_to(1)
                store.flush()
                store.reset()
            store.engine.apply((), (), {b"copied": b"1"})
            store.flush()
            disks.of["a"].crash()
            assert opened(disks.of["a"]).engine.state() == {b"copied": b"1"}


def test_a_new_partition_is_there_after_a_crash(tmp_path: Path) -> None:
    """Rows that were acknowledged would go with a directory whose name was never synced."""
    for seed in SEEDS:
        disks = Disks(tmp_path / str(seed), ["a"], random.Random(seed))
        with disks.tracked():
            store = opened(disks.of["a"])
            store.update_meta(leader_epoch=1)
            rows = rows_batch([b"row"], [0], [b"value"])
            store.append(build_entry(rows, leader_epoch=1, base_offset=0, commit_time=1))
            store.sync()
            disks.of["a"].crash()
            store = opened(disks.of["a"])
            assert (store.log_end, store.meta.leader_epoch) == (1, 1)
