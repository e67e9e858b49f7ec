"""How far reads see: no further than what is committed and applied, and never back."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rezone.datanode.commit.positions import Positions
from rezone.storage.log.entry import OP_UPSERT, build_entry, rows_batch
from rezone.storage.state.meta import PartitionMeta
from rezone.storage.store import PartitionStore
from rezone.wire.codec.keyspace import hash_key, row_id


def entry(offset: int, time: int) -> bytes:
    """Return an entry of one row."""
    batch = rows_batch([row_id(hash_key(b"k"), b"k")], [OP_UPSERT], [b"v"])
    return build_entry(batch, leader_epoch=1, base_offset=offset, commit_time=time)


class Case:
    """Positions over a store of which only the offsets are there."""

    def __init__(
        self, *, applied: int = 0, committed: int = 0, needs_snapshot: bool = False
    ) -> None:
        self.closed: dict[int, int] = {}
        self.store: Any = SimpleNamespace(
            meta=PartitionMeta(committed_offset=committed, needs_snapshot=needs_snapshot),
            log_end=3,
            applied=applied,
            applied_time=10 * applied,
            last_commit_time=30,
            note_committed=lambda _: None,
        )
        changed = threading.Condition()
        changed.acquire()  # positions are changed under the partition's lock
        self.positions = Positions(
            cast("PartitionStore", self.store),
            changed,
            lambda applied: self.closed.get(applied, 0),
        )

    def reads(self) -> tuple[int, int]:
        """Return (rows time, readable time)."""
        return self.positions.rows_time, self.positions.readable_time


def test_reads_see_what_is_both_committed_and_applied() -> None:
    """A read would return rows that may be undone, or miss rows it was told of."""
    case = Case(applied=3, committed=3)
    assert case.reads() == (30, 30)
    case.store.log_end = 5
    case.positions.appended(entry(3, 40) + entry(4, 50))
    case.positions.commit(4)
    assert case.reads() == (30, 30), "not applied"
    case.store.applied = 5
    case.positions.note_applied()
    assert case.reads() == (40, 40), "the last one is not committed"
    case.positions.commit(2)
    assert case.positions.committed == 4, "an older offset changes nothing"
    case.positions.commit(5)
    assert case.reads() == (50, 50)


def test_a_restart_reads_nothing_that_may_be_undone() -> None:
    """The engine may have more than is known to be committed."""
    assert Case(applied=3, committed=2).reads() == (0, 0)
    assert Case(applied=3, committed=3, needs_snapshot=True).reads() == (0, 0)


def test_a_closed_time_counts_where_its_offset_is_applied_and_stays() -> None:
    """A read as of a closed timestamp would miss rows, or the time would fall back."""
    case = Case(applied=2, committed=3)
    case.closed = {3: 99}
    case.positions.note_applied()
    assert case.positions.readable_time < 99
    case.store.applied = 3
    case.positions.note_applied()
    assert case.reads() == (30, 99)
    case.closed = {}
    case.positions.note_applied()
    assert case.reads() == (30, 99)


def test_what_is_cut_off_is_neither_committed_nor_read() -> None:
    """After a rollback a read would wait for rows, or have a time, that are nobody's history."""
    case = Case(applied=3, committed=3)
    case.store.log_end = 5
    case.positions.appended(entry(3, 40) + entry(4, 50))
    case.positions.commit(5)
    case.store.log_end = 4
    case.positions.follow_cut()
    assert case.positions.committed == 4
    case.store.applied = 4
    case.positions.note_applied()
    assert case.reads() == (40, 40)
    case.positions.make_unreadable()
    assert case.reads() == (0, 0)


def test_nothing_is_committed_beyond_the_log() -> None:
    """The offset would be promised to others and lost with the next crash."""
    with pytest.raises(AssertionError, match="beyond the log"):
        Case(applied=3, committed=3).positions.commit(4)
