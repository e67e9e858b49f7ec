"""The journal of a replica's facts: what a crash may leave of it, and what it may not."""

import os
from pathlib import Path

import pytest

from rezone.storage.log.journal import Journal, whole_records
from rezone.storage.state.meta import JOURNAL_NAME, MetaFile, PartitionMeta
from rezone.wire.errors import CorruptionError

OLDER, NEWEST = b"older" * 100, b"newest" * 200


def written(path: Path) -> bytes:
    """Return a journal of two records, the newest over three sectors."""
    journal = Journal(path)
    journal.write(OLDER)
    before = path.stat().st_size
    journal.write(NEWEST)
    assert path.stat().st_size - before == 12 + len(NEWEST)
    return path.read_bytes()


def test_a_torn_record_was_never_written(tmp_path: Path) -> None:
    """A replica whose machine failed in the middle of a change would not start again."""
    path = tmp_path / "journal"
    data = written(path)
    begin = len(data) - 12 - len(NEWEST)
    torn = [data[:end] for end in range(begin + 1, len(data))]
    # A file that grew before its bytes came: the sectors not written are zero.
    sectors = [s for s in range(512, len(data), 512) if s > begin]
    torn += [data[:s] + bytes(len(data) - s) for s in [begin, *sectors]]
    torn += [data[:s] + bytes(512) + data[s + 512 :] for s in sectors if s + 512 < len(data)]
    torn.append(data[:begin] + bytes(sectors[0] - begin) + data[sectors[0] :])
    for left in torn:
        path.write_bytes(left)
        journal = Journal(path)
        assert journal.newest == OLDER
    journal.write(b"next")
    assert Journal(path).newest == b"next"
    path.write_bytes(data)
    assert Journal(path).newest == NEWEST


def test_damage_is_no_torn_record(tmp_path: Path) -> None:
    """One flipped bit would take back an epoch that others were promised."""
    path = tmp_path / "journal"
    data = written(path)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            Journal(path)
    # A sector that went lost below a later record.
    path.write_bytes(data)
    Journal(path).write(OLDER)
    data = path.read_bytes()
    for lost in (512, 1024):
        path.write_bytes(data[:lost] + bytes(512) + data[lost + 512 :])
        with pytest.raises(CorruptionError):
            Journal(path)


def test_a_change_costs_one_sync_and_the_file_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of epoch lies in some partition's write gap, and a journal could fill a disk."""
    path = tmp_path / "journal"
    journal = Journal(path, bytes_max=4096)
    journal.write(OLDER)
    syncs: list[int] = []
    real = os.fdatasync

    def counted(number: int) -> None:
        syncs.append(number)
        real(number)

    monkeypatch.setattr(os, "fdatasync", counted)
    monkeypatch.setattr(os, "fsync", lambda number: pytest.fail(f"fsync of {number}"))
    for _ in range(6):
        journal.write(OLDER)
    assert len(syncs) == 6
    monkeypatch.undo()
    for number in range(100):
        journal.write(OLDER + b"%d" % number)
        assert path.stat().st_size <= 4096
        assert Journal(path).newest == OLDER + b"%d" % number


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_after_a_failed_write_the_next_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A full disk would leave a journal whose next record nobody finds, or trusts wrongly."""

    def fails(*_arguments: object) -> int:
        raise OSError(28, "no space left")

    path = tmp_path / "journal"
    journal = Journal(path)
    journal.write(OLDER)
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="no space"):
        journal.write(b"lost")
    monkeypatch.undo()
    assert journal.newest == OLDER
    assert Journal(path).newest in {OLDER, b"lost"}
    journal.write(NEWEST)
    assert Journal(path).newest == NEWEST


def test_facts_that_nobody_can_read_count_as_damage(tmp_path: Path) -> None:
    """A replica would be opened as a new one, with none of the epochs it has promised."""
    Journal(tmp_path / JOURNAL_NAME).write(b'{"partition": "x"}')
    assert MetaFile.exists(tmp_path)
    with pytest.raises(CorruptionError, match=JOURNAL_NAME):
        MetaFile(tmp_path, PartitionMeta())


@pytest.mark.parametrize("at", [0, 9, 30])
def test_whole_records_are_found_also_behind_damage(tmp_path: Path, at: int) -> None:
    """What a node promised last would be lost with what it promised first."""
    path = tmp_path / "journal"
    data = bytearray(written(path))
    assert list(whole_records(path)) == [OLDER, NEWEST]
    data[at] ^= 1
    path.write_bytes(data)
    assert list(whole_records(path))[-1] == NEWEST
    path.write_bytes(data[:-1])
    assert NEWEST not in list(whole_records(path))
