"""Files of the log from before a copy: they join exactly, or are refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from test_storage_log import entry, filled, opened

from rezone.storage.log.log import PartitionLog
from rezone.storage.log.older_file import LogStand
from rezone.wire.errors import ConflictError, CorruptionError, SnapshotExpiredError

COUNT = 12
BYTES_MAX = 1 << 20


def copied(path: Path, giver: PartitionLog, offset: int) -> PartitionLog:
    """Return a log that begins where a copy has ended, and has what follows there."""
    log = opened(path)
    log.restart(offset, *giver.stand_at(offset))
    log.append(giver.read(offset, BYTES_MAX))
    log.sync()
    return log


def bring(taker: PartitionLog, giver: PartitionLog) -> LogStand:
    """Bring the file that goes before a log; return where it begins."""
    start = taker.start
    begin = giver.stand_before(start)
    file = taker.receive_older(begin, BYTES_MAX)
    while not file.is_whole:
        data = giver.read(file.offset, 1)
        file.add(data)
    file.finish()
    return begin


@pytest.mark.proves("CF-04")
def test_a_log_is_whole_again_file_by_file(tmp_path: Path) -> None:
    """A feed that goes on from an older time would be told that it is too late."""
    giver, _ = filled(tmp_path / "giver", COUNT)
    taker = copied(tmp_path / "taker", giver, 2 * (COUNT - 2))
    assert taker.start_time > 0
    begun = []
    while taker.start:
        begun.append(bring(taker, giver).offset)
    assert len(begun) > 2
    for log in (taker, opened(tmp_path / "taker")):
        assert (log.start, log.start_time, log.end) == (0, 0, giver.end)
        read = b"".join(log.read(2 * number, 1) for number in range(COUNT))
        assert read == b"".join(giver.read(2 * number, 1) for number in range(COUNT))
        assert [log.offset_after(time) for time in range(30)] == [
            giver.offset_after(time) for time in range(30)
        ]
        assert list(log.headers(0)) == list(giver.headers(0))
    taker.trim(begun[-2])
    assert taker.start == begun[-2]
    with pytest.raises(SnapshotExpiredError):
        giver.stand_before(0)


@pytest.mark.proves("CF-04")
def test_what_does_not_join_is_refused(tmp_path: Path) -> None:
    """Bytes of a hostile or a damaged node would stand in the log as committed changes."""
    giver, entries = filled(tmp_path / "giver", COUNT)
    taker = copied(tmp_path / "taker", giver, 2 * (COUNT - 1))
    begin = LogStand(18, 17 + 0, 1)
    file = taker.receive_older(begin, BYTES_MAX)
    for wrong in (entries[8], entries[10], entry(18, time=17), entry(18, epoch=0), entry(18, 6)):
        with pytest.raises(ConflictError):
            file.add(wrong)
    with pytest.raises(CorruptionError):
        file.add(entries[9][:-1] + bytes([entries[9][-1] ^ 1]))
    file.add(entries[9])
    assert not file.is_whole
    with pytest.raises(ConflictError):
        file.finish()
    # One that ends where the log begins, of another history: its last time is another.
    file.add(entry(20, time=20))
    assert file.is_whole
    with pytest.raises(ConflictError):
        file.finish()
    small = taker.receive_older(begin, 200)
    with pytest.raises(ConflictError, match="more than 200 bytes"):
        small.add(entries[9] + entries[10])
    assert taker.start == 2 * (COUNT - 1)
    # What was begun is gone when the log is opened again.
    assert list((tmp_path / "taker").glob("*.tmp"))
    again = opened(tmp_path / "taker")
    assert (again.start, again.end) == (taker.start, taker.end)
    assert not list((tmp_path / "taker").glob("*.tmp"))


def test_a_log_that_has_begun_again_takes_no_file_that_was_for_the_one_before(
    tmp_path: Path,
) -> None:
    """Another copy, or a reset, while a file comes would leave a gap in the log."""
    giver, entries = filled(tmp_path / "giver", COUNT)
    taker = copied(tmp_path / "taker", giver, 2 * (COUNT - 1))
    file = taker.receive_older(LogStand(20, *giver.stand_at(20)), BYTES_MAX)
    file.add(entries[10])
    taker.restart(24, *giver.stand_at(24))
    with pytest.raises(ConflictError, match="begins at 24"):
        file.finish()
    file.drop()
    with contextlib.suppress(FileNotFoundError):
        file.drop()
    assert (opened(tmp_path / "taker").start, taker.end) == (24, 24)
