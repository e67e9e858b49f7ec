"""What replicas hold, as the checks of the simulation know it: else they would see what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rezone.storage.applier import pairs_of
from rezone.storage.log.entry import build_entry, iter_entries, rows_batch
from rezone.storage.state.meta import CopyMeta
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from simulation.nodes.file_engine import FileEngine
from simulation.nodes.held import Held, History

ENTRIES = 6


def opened(directory: Path) -> PartitionStore:
    """Open a store whose log has a file for each entry."""
    config = StoreConfig(
        log_segment_bytes=100,
        open_engine=lambda _kind, path, _rocks: FileEngine(path, lambda: "new"),
    )
    return PartitionStore.open(directory, config)


def filled(directory: Path) -> PartitionStore:
    """Return a store of some entries, all synced and applied."""
    store = opened(directory)
    store.update_meta(leader_epoch=1)
    for offset in range(ENTRIES):
        rows = rows_batch([b"row"], [0], [b"%d" % offset])
        store.append(build_entry(rows, leader_epoch=1, base_offset=offset, commit_time=offset + 1))
    store.sync()
    store.apply_to(ENTRIES)
    return store


def held_by(store: PartitionStore, *others: History) -> Held:
    """Return what a store holds, where others are known to have these histories."""
    held = Held(lambda: others)
    held.follow(store)
    return held


def test_a_trimmed_log_is_known_by_who_has_had_its_rows(tmp_path: Path) -> None:
    """Each copy and each trimmed log would look like rows that are missing."""
    store = filled(tmp_path)
    whole = held_by(store).rows
    store.flush()
    store.trim(0, ENTRIES - 1)
    assert store.log_start == ENTRIES - 1
    assert held_by(store, whole[:2], whole).rows == whole
    with pytest.raises(AssertionError, match="nobody's history"):
        held_by(store, whole[:2])


def test_rows_that_no_history_makes_are_seen(tmp_path: Path) -> None:
    """A copy could leave rows out, or bring others: its log goes on at the right place."""
    store = filled(tmp_path)
    (key, *_), _, *_ = store.engine.scan_chains(b"", None, rows_max=1, bytes_max=1)
    store.engine.apply((), [key], {})
    with pytest.raises(AssertionError, match="versions"):
        held_by(store)


def test_a_machine_that_is_down_has_what_its_files_say(tmp_path: Path) -> None:
    """What a crash tore, or took, would count for who may lead."""
    store = filled(tmp_path)
    held = held_by(store)
    whole = held.rows
    held.left_in(tmp_path)
    assert (held.rows, held.durable) == (whole, ENTRIES)
    last = max((tmp_path / "log").iterdir())
    last.write_bytes(last.read_bytes()[:-1])
    held.left_in(tmp_path)
    assert (held.rows, held.durable) == (whole[:-1], ENTRIES - 1)
    assert not held.needs_snapshot
    store.update_meta(needs_snapshot=True)
    held.left_in(tmp_path)
    assert held.needs_snapshot


def test_a_copy_may_have_rows_of_a_newer_snapshot(tmp_path: Path) -> None:
    """A copy that another source has completed would look like a wrong one; and only a copy may."""
    whole = held_by(filled(tmp_path / "source")).rows
    store = filled(tmp_path / "copy")
    store.truncate(ENTRIES - 1)
    (entry,) = iter_entries(whole[-1])
    store.engine.apply(pairs_of(entry), (), {})
    with pytest.raises(AssertionError, match="versions"):
        held_by(store, whole)
    done = CopyMeta(attempt="", snapshot_id="", offset=5, commit_time=5, leader_epoch=1, done=True)
    store.update_meta(copy=done)
    held_by(store, whole)
    with pytest.raises(AssertionError, match="versions"):
        held_by(store, whole[:-1])
