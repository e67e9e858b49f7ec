"""Entries and the log: format, checks, recovery of what a crash leaves."""

import itertools
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.storage.log.entry import (
    HEADER_BYTES,
    Entry,
    EntryKind,
    ProducerBatch,
    build_entry,
    header_at,
    iter_entries,
    rows_batch,
)
from rezone.storage.log.log import PartitionLog
from rezone.storage.log.segment import FILE_HEADER_BYTES
from rezone.wire.errors import (
    ConflictError,
    CorruptionError,
    NotReadyError,
    SnapshotExpiredError,
)


def entry(base: int, rows: int = 2, *, epoch: int = 1, time: int = 0, size: int = 10) -> bytes:
    """Return an entry of `rows` rows at `base`; its commit time is above its base."""
    batch = rows_batch(
        [b"row%d-%d" % (base, i) for i in range(rows)], [0] * rows, [b"v" * size] * rows
    )
    return build_entry(batch, leader_epoch=epoch, base_offset=base, commit_time=time or base + 1)


def opened(path: Path, segment_bytes: int = 1500, tail_bytes: int = 3000) -> PartitionLog:
    """Open a log of small files."""
    return PartitionLog(path, segment_bytes=segment_bytes, tail_bytes=tail_bytes)


def filled(path: Path, count: int = 12) -> tuple[PartitionLog, list[bytes]]:
    """Return a log of `count` entries of two rows each, synced, and the entries."""
    log = opened(path)
    entries = [entry(2 * i) for i in range(count)]
    for one in entries:
        log.append(one)
    log.sync()
    return log, entries


@given(
    rows=st.lists(
        st.tuples(st.binary(max_size=20), st.sampled_from([0, 1, 2]), st.binary(max_size=50)),
        min_size=1,
        max_size=20,
    )
)
def test_entry_round_trip(rows: list[tuple[bytes, int, bytes]]) -> None:
    """Rows would change on their way through the log."""
    ids, ops, values = (list(part) for part in zip(*rows, strict=True))
    named = ProducerBatch(b"w" * 16, 9, 3, 1 << 20, b"d" * 16, opens=True)
    raw = build_entry(
        rows_batch(ids, ops, values),
        leader_epoch=7,
        base_offset=100,
        commit_time=5,
        batch=named,
        kind=EntryKind.COMMIT,
    )
    (found,) = iter_entries(memoryview(raw))
    assert isinstance(found, Entry)
    assert found.header[2:] == (7, len(rows), 100, 5, *named[:-1], EntryKind.COMMIT, 1)
    assert found.header.batch == named
    assert found.header.end_offset == 100 + len(rows)
    assert [column.to_pylist() for column in found.batch().columns] == [ids, ops, values]
    assert len(raw) % 8 == 0


def test_entry_header_format_is_fixed() -> None:
    """A changed header would make every log on every disk unreadable."""
    raw = entry(3, 1, epoch=2, time=9)
    assert HEADER_BYTES == 88
    assert raw[0:4] == len(raw).to_bytes(4, "little")
    assert raw[8:16] == (2).to_bytes(4, "little") + (1).to_bytes(4, "little")
    assert raw[16:32] == (3).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert header_at(raw[:40], 0) is None
    with pytest.raises(ValueError, match="at least one"):
        build_entry(rows_batch([], [], []), leader_epoch=1, base_offset=0, commit_time=1)


def test_every_flipped_bit_is_found() -> None:
    """Damaged bytes would be stored or served as rows."""
    raw = entry(0, 1)
    for position, bit in itertools.product(range(len(raw)), (0, 7)):
        damaged = bytearray(raw)
        damaged[position] ^= 1 << bit
        with pytest.raises(CorruptionError):
            list(iter_entries(bytes(damaged)))


def test_append_checks_what_it_takes(tmp_path: Path) -> None:
    """A gap, a fallen epoch or a time that stands still would break replay and undo."""
    log, _ = filled(tmp_path, 3)
    before = (log.end, log.size)
    for bad in (
        entry(5),
        entry(7),
        entry(6, epoch=0),
        entry(6, time=5),
        entry(6) + entry(9),
        entry(6) + entry(8, time=7),
    ):
        with pytest.raises((ConflictError, CorruptionError)):
            log.append(bad)
    with pytest.raises(CorruptionError):
        log.append(entry(6)[:-1])
    assert (log.end, log.size) == before
    assert log.append(b"") == []
    log.append(memoryview(entry(6) + entry(8)))
    assert (log.end, log.last_time) == (10, 9)


@pytest.mark.parametrize("tail_bytes", [0, 3000, 1 << 20])
def test_read_gives_whole_entries(tmp_path: Path, tail_bytes: int) -> None:
    """A follower would get half an entry, or another one than it asked for."""
    _, entries = filled(tmp_path)
    log = opened(tmp_path, tail_bytes=tail_bytes)
    more = [entry(24 + 2 * i, size=40 * i) for i in range(6)]
    log.append(b"".join(more[:3]))
    for one in more[3:]:
        log.append(one)
    entries += more
    for i, bytes_max in itertools.product(range(len(entries)), (1, 600, 1300, 1 << 20)):
        got = log.read(2 * i, bytes_max)
        wanted = b"".join(entries[i:])
        assert wanted.startswith(got)
        assert len(got) <= max(bytes_max, len(entries[i]))
        assert len(got) >= len(entries[i])
        assert next(iter_entries(got)).header.base_offset == 2 * i
    assert log.read(log.end, 100) == b""
    for inside in (1, 25, log.end - 1):
        with pytest.raises(ConflictError):
            log.read(inside, 100)
    with pytest.raises(ConflictError):
        log.read(log.end + 1, 100)


def test_reopened_log_is_the_same(tmp_path: Path) -> None:
    """A restart would lose or repeat entries."""
    log, entries = filled(tmp_path)
    again = opened(tmp_path)
    assert (again.start, again.end, again.durable_end) == (0, 24, 24)
    assert (again.last_time, again.last_epoch) == (log.last_time, log.last_epoch)
    assert again.read(0, 1 << 20) == b"".join(entries[:4])  # one file
    assert [h.base_offset for h in again.headers(6)] == list(range(6, 24, 2))


def test_torn_tail_is_cut_at_every_length(tmp_path: Path) -> None:
    """A half-written entry would stop the partition from opening, or be taken for a whole one."""
    path = tmp_path / "log"
    log = opened(path, segment_bytes=1 << 20)
    log.append(entry(0) + entry(2))
    file = next(path.glob("*.log"))
    whole = file.read_bytes()
    start = len(whole) - len(entry(2))
    for length in range(start, len(whole)):
        file.write_bytes(whole[:length])
        cut = opened(path)
        assert (cut.end, cut.last_time) == (2, 1)
        assert file.stat().st_size == start
        cut.append(entry(2))
        assert file.read_bytes() == whole


def test_flipped_bit_at_every_byte_of_the_last_entry(tmp_path: Path) -> None:
    """A damaged last entry would be served after a restart."""
    log = opened(tmp_path, segment_bytes=1 << 20)
    log.append(entry(0) + entry(2))
    file = next(tmp_path.glob("*.log"))
    whole = file.read_bytes()
    for position in range(len(whole) - len(entry(2)), len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        file.write_bytes(damaged)
        assert opened(tmp_path).end == 2


def test_damage_in_an_older_file_is_never_served(tmp_path: Path) -> None:
    """A follower would be sent rows that nobody wrote."""
    _, _ = filled(tmp_path)
    oldest = min(tmp_path.glob("*.log"))
    data = bytearray(oldest.read_bytes())
    data[FILE_HEADER_BYTES + HEADER_BYTES + 300] ^= 1
    oldest.write_bytes(data)
    log = opened(tmp_path)
    with pytest.raises(CorruptionError):
        log.read(0, 1)
    assert log.read(2, 1)
    data[3] ^= 1
    oldest.write_bytes(data)
    with pytest.raises(CorruptionError):
        opened(tmp_path)


@pytest.mark.parametrize("offset", range(0, 26, 2))
def test_truncate_at_every_entry(tmp_path: Path, offset: int) -> None:
    """A rollback would leave rows of the other branch, or the log could not go on."""
    log, entries = filled(tmp_path)
    log.truncate(offset)
    assert (log.end, log.durable_end) == (offset, offset)
    assert log.last_time == max(offset - 1, 0)
    log.append(entry(offset, epoch=5, time=100))
    again = opened(tmp_path)
    assert (again.end, again.last_epoch, again.last_time) == (offset + 2, 5, 100)
    kept = [h.base_offset for h in again.headers(0)]
    assert kept == list(range(0, offset + 2, 2))
    if offset:
        assert again.read(offset - 2, 1) == entries[offset // 2 - 1]


def test_truncate_refuses_what_is_no_boundary(tmp_path: Path) -> None:
    """A rollback inside an entry would tear it."""
    log, _ = filled(tmp_path)
    for offset in (1, 13, 25):
        with pytest.raises(ConflictError):
            log.truncate(offset)
    assert log.end == 24


def test_stand_at_every_entry(tmp_path: Path) -> None:
    """An undo would set the wrong commit time or leader epoch."""
    filled(tmp_path)
    log = opened(tmp_path)
    for offset in range(2, 26, 2):
        assert log.stand_at(offset) == (offset - 1, 1)
    assert log.stand_at(0) == (0, 0)


def test_trim_and_restart(tmp_path: Path) -> None:
    """The log would grow for ever, or lose what is still needed."""
    log, _ = filled(tmp_path)
    assert log.trimmable(1 << 20) == 0
    assert log.trimmable(0) > 6
    log.trim(9)
    start = log.start
    assert 0 < start <= 9
    with pytest.raises(SnapshotExpiredError) as caught:
        log.read(0, 1)
    assert caught.value.details == {"log_start": start}
    again = opened(tmp_path)
    assert (again.start, again.end) == (start, 24)
    assert again.stand_at(start) == (start - 1, 1)
    again.trim(1 << 40)
    assert again.end == 24
    again.restart(1000, 77, 3)
    assert (again.start, again.end, again.durable_end, again.last_time) == (1000, 1000, 1000, 77)
    last = opened(tmp_path)
    assert (last.start, last.end, last.last_time, last.last_epoch) == (1000, 1000, 77, 3)
    with pytest.raises(ConflictError, match="epoch falls"):
        last.append(entry(1000, epoch=2, time=100))


def test_leftover_of_a_crash_while_a_file_is_made(tmp_path: Path) -> None:
    """A crash while rolling would stop the partition from opening."""
    filled(tmp_path)
    (tmp_path / "00000000000000000099.tmp").write_bytes(b"half")
    assert opened(tmp_path).end == 24
    assert not list(tmp_path.glob("*.tmp"))


def test_concurrent_syncs_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand writers would need a thousand disk syncs."""
    log = opened(tmp_path, segment_bytes=1 << 20)
    entered, go_on = threading.Event(), threading.Event()
    calls = []

    def slow(descriptor: int) -> None:
        calls.append(descriptor)
        entered.set()
        assert go_on.wait(10)

    monkeypatch.setattr(os, "fdatasync", slow)
    log.append(entry(0))
    ends: list[int] = []
    first = threading.Thread(target=lambda: ends.append(log.sync()))
    first.start()
    assert entered.wait(10)
    for i in range(1, 9):
        log.append(entry(2 * i))  # appends go on while the disk works
    others = [threading.Thread(target=lambda: ends.append(log.sync())) for _ in range(8)]
    for thread in others:
        thread.start()
    go_on.set()
    for thread in [first, *others]:
        thread.join(10)
    assert len(ends) == 9
    assert log.durable_end == 18
    assert len(calls) <= 3


def test_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second fsync after a failed one may lie: rows would be acknowledged that are lost."""
    log, _ = filled(tmp_path, 2)
    log.append(entry(4))

    def failing(_descriptor: int) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError, match="no space"):
            log.sync()
    with pytest.raises(NotReadyError):
        log.sync()
    with pytest.raises(NotReadyError):
        log.append(entry(6))
    assert log.durable_end == 4


def test_the_log_is_found_by_time(tmp_path: Path) -> None:
    """A change feed would miss what comes behind its time, or read what was trimmed as nothing."""
    log = opened(tmp_path, tail_bytes=0)
    for number in range(400):
        log.append(entry(2 * number, time=10 * number + 10, size=400))
    log = opened(tmp_path, tail_bytes=0)  # other files than the newest have no index yet
    for time in (0, 9, 10, 11, 1234, 3999, 4000, 5000):
        assert log.offset_after(time) == 2 * min(time // 10, 400)
    log.trim(200)
    with pytest.raises(SnapshotExpiredError) as refused:
        log.offset_after(500)
    oldest = refused.value.details["log_time"]
    assert isinstance(oldest, int)
    assert log.offset_after(oldest) == log.start
