"""Checkpoints of RocksDB made without it, beside writers, flushes and merges (SS-01, HS-07)."""

import os
import random
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rocksdict
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import rid

from rezone.storage.engines import rocks_checkpoint
from rezone.storage.engines.base import FLAGS, time_suffix
from rezone.storage.engines.manifest import ManifestFiles, UnknownManifestError
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_checkpoint import RocksCheckpoints
from rezone.storage.engines.rocks_settings import RocksSettings, options_of

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

    def flushed(self, count: int) -> None:
        """Write so many, each in a file of its own."""
        for _ in range(count):
            self.step()
            self.engine.flush()

    def merge(self) -> None:
        """Make one file of all."""
        self.engine._db.compact_range(None, None)


def key_of(number: int) -> bytes:
    """Return the key that a step writes; steps that follow each other lie apart.

    So long that what the MANIFEST says of a file, its first and last key, goes over many blocks.
    """
    return rid(number * 7919 % 1000) + b"k" * 2000 + time_suffix(number)


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


def test_checkpoints_beside_writes_flushes_and_merges(tmp_path: Path) -> None:
    """A copy would lack files, or rows that were durable, or be no state that there ever was."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)  # noqa: T201 - repeats a failure
    chance = random.Random(seed)
    steps = Steps(tmp_path / "engine", RocksSettings(manifest_bytes_max=4096))
    checkpoints = RocksCheckpoints(tmp_path / "engine")
    end = threading.Event()

    def write() -> None:
        writing = random.Random(seed + 1)
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
            if chance.random() < 0.5:
                checkpoints.catch_up()
            before = steps.done
            steps.engine.flush()
            checkpoints.make(tmp_path / f"copy-{number}")
            seen.append(step_in(tmp_path / f"copy-{number}"))
            assert seen[-1] >= max(before, seen[-2])
    finally:
        end.set()
        for thread in threads:
            thread.join()
        steps.engine.close()


def on_links(monkeypatch: pytest.MonkeyPatch, name: str, what: Any, times: int) -> None:
    """Have something happen just before a file of this name is linked, so many times."""
    link, left = os.link, [times]

    def linked(source: Any, *args: Any, **named: Any) -> None:
        if left[0] and str(source).endswith(name):
            left[0] -= 1
            what()
        link(source, *args, **named)

    monkeypatch.setattr(os, "link", linked)


def test_files_that_a_merge_drops_meanwhile_are_replaced(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MANIFEST's beginning would name files that are gone before they are linked."""
    steps.flushed(3)
    on_links(monkeypatch, ".sst", steps.merge, 1)
    RocksCheckpoints(steps.directory).make(tmp_path / "copy")
    assert len(list((tmp_path / "copy").glob("*.sst"))) == 1
    assert step_in(tmp_path / "copy") == 3


@pytest.mark.parametrize("another", [False, True])
def test_changes_meanwhile_come_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, another: bool
) -> None:
    """A checkpoint would name files, or with CURRENT a MANIFEST, that it does not have."""
    steps = Steps(tmp_path / "engine", SHORT if another else RocksSettings())
    steps.flushed(1)
    before = steps.engine.manifest()
    on_links(monkeypatch, ".sst", lambda: steps.flushed(2), 1)
    checkpoints = RocksCheckpoints(steps.directory)
    checkpoints.make(tmp_path / "copy")
    after = steps.engine.manifest()
    assert after[0] > before[0] if another else after[1] > before[1]
    assert step_in(tmp_path / "copy") == 1
    checkpoints.make(tmp_path / "copy")
    assert step_in(tmp_path / "copy") == 3
    steps.engine.close()


def test_rocksdb_makes_it_itself_when_files_are_gone_each_time(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy beside merges without end would never begin."""
    steps.flushed(2)

    def again() -> None:
        steps.flushed(2)
        steps.merge()

    on_links(monkeypatch, ".sst", again, rocks_checkpoint._TRIES_MAX)
    steps.engine.checkpoint(tmp_path / "copy")
    assert (tmp_path / "copy" / "IDENTITY").exists()
    assert step_in(tmp_path / "copy") == 2 + 2 * rocks_checkpoint._TRIES_MAX


def test_rocksdb_makes_it_itself_when_its_manifest_is_not_understood(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade of RocksDB with a new format no partition could be copied as files."""
    steps.flushed(2)
    monkeypatch.setattr("rezone.storage.engines.manifest._NUMBERS", frozenset())
    steps.engine.prepare_checkpoint()
    steps.engine.checkpoint(tmp_path / "copy")
    assert step_in(tmp_path / "copy") == 2


def test_a_checkpoint_is_made_without_the_library(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads of the node would wait for the disk three times, for it holds their lock."""
    steps.flushed(2)
    monkeypatch.setattr(rocksdict, "Checkpoint", None)
    steps.engine.checkpoint(tmp_path / "copy")
    assert step_in(tmp_path / "copy") == 2


def test_a_file_system_without_links_leaves_nothing(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a checkpoint would stay, or RocksDB copy all files with the interpreter lock held."""
    steps.flushed(2)

    def refuse() -> None:
        raise PermissionError("no links here")

    on_links(monkeypatch, ".sst", refuse, 1)
    with pytest.raises(PermissionError):
        steps.engine.checkpoint(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """All files that a database ever had, and its MANIFEST: of 48 flushes and four merges."""
    steps = Steps(tmp_path_factory.mktemp("history") / "engine", RocksSettings())
    steps.engine._db.set_options({"disable_auto_compactions": "true"})
    ever = tmp_path_factory.mktemp("ever")

    def keep() -> None:
        for path in steps.directory.glob("*.sst"):
            if not (ever / path.name).exists():
                (ever / path.name).hardlink_to(path)

    for _ in range(4):
        steps.flushed(12)
        keep()
        steps.merge()
        keep()
    for name in ("CURRENT", "IDENTITY", "rocksdict-config.json"):
        shutil.copyfile(steps.directory / name, ever / name)
    manifest = (steps.directory / (ever / "CURRENT").read_text().strip()).read_bytes()
    steps.engine.close()
    return ever, manifest


def test_each_beginning_of_a_manifest_is_a_state_of_the_database(
    tmp_path: Path, history: tuple[Path, bytes]
) -> None:
    """A copy would be torn when RocksDB is in the middle of a record as its MANIFEST is read."""
    ever, manifest = history
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)  # noqa: T201 - repeats a failure
    chance = random.Random(seed)
    database = tmp_path / "database"
    database.mkdir()
    for path in ever.iterdir():
        (database / path.name).hardlink_to(path)
    name = (ever / "CURRENT").read_text().strip()
    first = ManifestFiles()
    while not first.numbers:
        first.read(manifest[first.end : first.end + 8192])
    seen = []
    for size in sorted(chance.randrange(first.end, len(manifest)) for _ in range(20)):
        (database / name).write_bytes(manifest[:size])
        RocksCheckpoints(database).make(tmp_path / "copy")
        seen.append(step_in(tmp_path / "copy"))
    assert seen == sorted(seen)
    assert len(set(seen)) > 5


@given(st.data())
@settings(max_examples=30)
def test_a_manifest_is_read_on_from_anywhere(
    history: tuple[Path, bytes], data: st.DataObject
) -> None:
    """What was read of a half written record would be read as one."""
    _, manifest = history
    cuts = data.draw(st.lists(st.integers(0, len(manifest)), max_size=30).map(sorted))
    files = ManifestFiles()
    for cut in cuts:
        files.read(manifest[files.end : cut])
        at_once = ManifestFiles()
        at_once.read(manifest[:cut])
        assert (files.end, files.numbers) == (at_once.end, at_once.numbers)
        assert files.end <= cut
    files.read(manifest[files.end :])
    assert files.end == len(manifest)


def record(edit: bytes) -> bytes:
    """Return a change as it stands in a MANIFEST, whose checksum is RocksDB's own affair."""
    return struct.pack("<IHB", 0, len(edit), 1) + edit


def added(number: int) -> bytes:
    """Return a change that adds a file below 128 without keys or fields."""
    return bytes([103, 0, number, 9, 0, 0, 0, 0, 1])


def test_a_file_that_moves_to_another_level_stays() -> None:
    """A copy would lack it, for it is dropped and added by one change."""
    files = ManifestFiles()
    files.read(record(added(5)) + record(b"\x06\x00\x05" + added(5)))
    assert files.numbers == {5}


@pytest.mark.parametrize("left", range(8))
def test_what_is_left_of_a_block_has_no_record(left: int) -> None:
    """Zeros at the end of a block would be taken for one."""
    text = (32 << 10) - left - 7 - 4
    first = record(
        b"\x01" + bytes([text & 0x7F | 0x80, text >> 7 & 0x7F | 0x80, text >> 14]) + bytes(text)
    )
    assert len(first) == (32 << 10) - left
    rest = bytes(left) if left < 7 else struct.pack("<IHB", 0, 0, 2) + bytes(left - 7)
    behind = added(5)
    files = ManifestFiles()
    files.read(first + rest + struct.pack("<IHB", 0, len(behind), 1 if left < 7 else 4) + behind)
    assert files.numbers == {5}


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(b"\xac\x02\x01", id="part of a group of changes"),
        pytest.param(b"\xc8\x01\x01", id="another column family"),
        pytest.param(b"\x90\x03\x00", id="a blob file"),
        pytest.param(b"\x87\x40\x00", id="a log to be there"),
        pytest.param(b"\x06\x00\x05", id="drops a file that is none"),
        pytest.param(b"\x01\x7fshort", id="text beyond its end"),
        pytest.param(b"\x02\x80", id="number beyond its end"),
        pytest.param(
            b"\x67\x00\x05\x09\x00\x00\x00\x00\x41\x01\x01\x01", id="in another directory"
        ),
    ],
)
def test_changes_that_are_not_known_are_not_guessed_at(edit: bytes) -> None:
    """A checkpoint would lack what they speak of."""
    with pytest.raises(UnknownManifestError):
        ManifestFiles().read(record(edit))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(7), id="zeros"),
        pytest.param(bytes(4) + b"\x00\x00\x05", id="of a log that is used again"),
        pytest.param(bytes(4) + b"\x00\x00\x04", id="ends before it begins"),
        pytest.param((bytes(4) + b"\x01\x00\x02\x02") * 2, id="begins before it ends"),
        pytest.param(bytes(4) + b"\xff\xff\x01", id="longer than a block"),
    ],
)
def test_records_that_are_none_are_not_read(data: bytes) -> None:
    """Damage would be taken for files."""
    with pytest.raises(UnknownManifestError):
        ManifestFiles().read(data)
