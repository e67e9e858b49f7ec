"""Checkpoints of RocksDB under writers, flushes and merges (SS-01, HS-07)."""

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rocksdict
from storage_kit import rid

from rezone.storage.engines.base import FLAGS, time_suffix
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_settings import RocksSettings, options_of
from rezone.wire.errors import CorruptionError, RezoneError

# So short that another MANIFEST takes its place with every change.
SHORT = RocksSettings(manifest_bytes_max=1)
KEPT = 40


class Steps:
    """An engine after so many steps: each writes a row with its number and deletes an old one."""

    def __init__(self, directory: Path, settings: RocksSettings = SHORT) -> None:
        self.directory = directory
        self.engine = RocksEngine(directory, settings)
        self.done = 0

    def step(self, value_bytes: int = 64) -> None:
        """Write one more."""
        number = self.done + 1
        put = (key_of(number), FLAGS[0] + b"v" * value_bytes)
        old = [key_of(number - KEPT)] if number > KEPT else []
        self.engine.apply([put], old, {b"step": b"%d" % number})
        self.done = number

    def flushed(self, count: int, value_bytes: int = 64) -> None:
        """Write so many, each in a file of its own."""
        for _ in range(count):
            self.step(value_bytes)
            self.engine.flush()

    def merge(self) -> None:
        """Make one file of all."""
        self.engine._db.compact_range(None, None)


def key_of(number: int) -> bytes:
    """Return the key that a step writes; steps that follow each other lie apart."""
    return rid(number * 7919 % 1000) + time_suffix(number)


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Steps]:
    """Open an engine in which nothing is yet."""
    made = Steps(tmp_path / "engine")
    yield made
    made.engine.close()


def live_in(directory: Path) -> set[str]:
    """Return the names of the files of which a database consists by RocksDB's own judgement."""
    options = options_of(RocksSettings())
    reading = rocksdict.AccessType.read_only(error_if_log_file_exist=False)
    database = rocksdict.Rdict(str(directory), options, access_type=reading)
    try:
        return {file["name"].lstrip("/") for file in database.live_files()}
    finally:
        database.close()


def step_in(directory: Path) -> int:
    """Open a checkpoint and return its last step; all must be as it was just after that."""
    assert {path.name for path in directory.glob("*.sst")} == live_in(directory)
    engine = RocksEngine(directory, RocksSettings())
    try:
        last = int(engine.state().get(b"step", b"0"))
        found = engine.scan_chains(b"", None, rows_max=1 << 40, bytes_max=1 << 40)
        want = sorted(key_of(number) for number in range(max(1, last - KEPT + 1), last + 1))
        assert found.keys == want
    finally:
        engine.close()
    shutil.rmtree(directory)
    return last


def test_checkpoints_under_writes_flushes_and_merges(tmp_path: Path) -> None:
    """A copy would lack files, or rows that were durable, or be no state that there ever was."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)  # noqa: T201 - repeats a failure
    steps = Steps(tmp_path / "engine", RocksSettings(manifest_bytes_max=4096))
    end = threading.Event()

    def write() -> None:
        writing = random.Random(seed)
        while not end.is_set():
            for _ in range(writing.randrange(1, 20)):
                steps.step(writing.randrange(2000))
            steps.engine.flush(wait=writing.random() < 0.5)

    def merge() -> None:
        while not end.is_set():
            steps.merge()

    threads = [threading.Thread(target=write), threading.Thread(target=merge)]
    for thread in threads:
        thread.start()
    try:
        seen = [0]
        for number in range(25):
            before = steps.done
            steps.engine.flush()
            steps.engine.checkpoint(tmp_path / f"copy-{number}")
            seen.append(step_in(tmp_path / f"copy-{number}"))
            assert seen[-1] >= max(before, seen[-2])
    finally:
        end.set()
        for thread in threads:
            thread.join()
        steps.engine.close()


def test_a_checkpoint_is_links_and_keeps_its_state(tmp_path: Path, steps: Steps) -> None:
    """A copy would cost the partition's room at once, or change while it is read."""
    steps.flushed(3)
    steps.engine.checkpoint(tmp_path / "copy")
    for path in (tmp_path / "copy").glob("*.sst"):
        assert path.samefile(steps.directory / path.name)
    steps.flushed(2)
    steps.merge()
    assert len(list(steps.directory.glob("*.sst"))) == 1
    steps.engine.checkpoint(tmp_path / "later")
    assert step_in(tmp_path / "copy") == 3
    assert step_in(tmp_path / "later") == 5


def test_an_existing_directory_is_refused_and_left_alone(tmp_path: Path, steps: Steps) -> None:
    """Files of another checkpoint would be mixed with these, or removed while they are read."""
    steps.flushed(1)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "other").touch()
    with pytest.raises(OSError, match="exists"):
        steps.engine.checkpoint(tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["other"]


def test_a_link_that_fails_leaves_nothing(tmp_path: Path, steps: Steps) -> None:
    """Half a checkpoint would stay and hold its room, or be read as a whole one."""
    steps.flushed(2)
    noticed: list[RezoneError] = []
    steps.engine.on_damage = noticed.append
    next(steps.directory.glob("*.sst")).unlink()
    with pytest.raises(CorruptionError):
        steps.engine.checkpoint(tmp_path / "copy")
    assert len(noticed) == 1, "a file of the engine is gone"
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_a_place_that_takes_no_checkpoint_is_no_damage(tmp_path: Path, steps: Steps) -> None:
    """A partition would count as damaged where only its copy by files is impossible."""
    steps.flushed(1)
    noticed: list[RezoneError] = []
    steps.engine.on_damage = noticed.append
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        steps.engine.checkpoint(tmp_path / "file" / "copy")
    assert not noticed


def test_merges_are_waited_for_before_the_library_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library waits for them with the interpreter lock held: the node would stand still.

    RocksDB flushes before a checkpoint. It first waits until another file does not slow writers
    down, even if there is nothing to flush.
    """
    slow = 3

    def options(settings: RocksSettings) -> rocksdict.Options:
        made = options_of(settings)
        made.set_level_zero_file_num_compaction_trigger(slow - 1)
        made.set_level_zero_slowdown_writes_trigger(slow)
        # A merge of two files takes some tenths of a second.
        made.set_ratelimiter(64 << 10, 100_000, 10)
        return made

    monkeypatch.setattr("rezone.storage.engines.rocks.options_of", options)
    steps = Steps(tmp_path / "engine")
    found: list[int] = []
    make = rocksdict.Checkpoint

    def counted(database: Any) -> Any:
        found.append(int(database.property_value("rocksdb.num-files-at-level0")))
        return make(database)

    monkeypatch.setattr(rocksdict, "Checkpoint", counted)
    steps.flushed(slow - 1, value_bytes=10_000)
    steps.engine.checkpoint(tmp_path / "copy")
    assert found[0] + 1 < slow
    steps.engine.close()
    assert step_in(tmp_path / "copy") == slow - 1
