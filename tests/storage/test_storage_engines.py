"""The contract every engine keeps (SS-04), run over each of them."""

import collections
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage_kit import ENGINES, rid

from rezone.storage.applier import collectable
from rezone.storage.engines import open_engine
from rezone.storage.engines.base import (
    FLAG_INTENT,
    FLAG_TOMBSTONE,
    FLAG_VALUE,
    FLAGS,
    INDEX_PREFIX,
    TIME_MAX,
    Engine,
    behind,
    time_of,
    time_suffix,
)
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_settings import RocksResources, RocksSettings
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import EngineKind
from simulation.nodes.file_engine import FileEngine

ALL = 1 << 40
FILES = 8
"""Twice as many as RocksDB merges."""

SETTLED_SECONDS = 0.5
MERGED_SECONDS = 30.0


@pytest.fixture(params=[*ENGINES, "simulated"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """One engine of each kind, empty; and the one that the simulation has in their place."""
    opened: Engine
    if request.param == "simulated":
        opened = FileEngine(tmp_path / "engine", lambda: "new")
    else:
        opened = open_engine(request.param, tmp_path / "engine", RocksSettings())
    yield opened
    opened.close()


def put(row: bytes, time: int, value: bytes = b"", flag: int = FLAG_VALUE) -> tuple[bytes, bytes]:
    """Return one version as engine key and value."""
    return row + time_suffix(time), FLAGS[flag] + value


def test_key_format_orders_versions_newest_first() -> None:
    """A changed key format would make every stored partition unreadable."""
    row = rid(1)
    assert row + time_suffix(5) < row + time_suffix(4) < behind(row)
    assert time_of(row + time_suffix(123)) == 123
    assert time_suffix(0) == b"\xff" * 8
    assert time_suffix(TIME_MAX) == bytes(8)


def test_newest_passes_over_intents_and_honours_tombstones(engine: Engine) -> None:
    """A read would show a row that is deleted, or one that is not committed."""
    row, other = rid(1), rid(2)
    engine.apply(
        [
            put(row, 10, b"a"),
            put(row, 20, flag=FLAG_TOMBSTONE),
            put(row, 30, b"c"),
            put(row, 40, b"i", FLAG_INTENT),
        ],
        (),
        {},
    )
    assert engine.newest([row, other], TIME_MAX) == [b"c", None]
    assert [engine.newest([row], t)[0] for t in (9, 10, 19, 20, 29, 30)] == [
        None,
        b"a",
        b"a",
        None,
        None,
        b"c",
    ]


def test_newest_times_are_those_of_versions_not_of_intents(engine: Engine) -> None:
    """A transaction would overwrite what was committed since it began, or be refused in vain."""
    written, deleted, intent, absent = rid(1), rid(2), rid(3), rid(4)
    engine.apply(
        [
            put(written, 10, b"a"),
            put(written, 30, b"b"),
            put(written, 40, b"i", FLAG_INTENT),
            put(deleted, 20, flag=FLAG_TOMBSTONE),
            put(intent, 50, b"i", FLAG_INTENT),
        ],
        (),
        {},
    )
    assert engine.newest_times([written, deleted, intent, absent]) == [30, 20, 0, 0]


def test_chains_of_rows_from_a_time_on(engine: Engine) -> None:
    """A commit would read all old versions of a row, or miss its own intent."""
    chains = {t: put(rid(1), t, b"%d" % t) for t in (10, 20, 30)} | {15: put(rid(2), 15, b"x")}
    engine.apply(list(chains.values()), (), {})
    rows = sorted([rid(1), rid(2), rid(3)])
    for since in (0, 10, 11, 20, 30, 31):
        found = engine.chains_of(rows, since=since)
        want = sorted(pair for t, pair in chains.items() if t >= since)
        assert list(zip(found.keys, found.values, strict=True)) == want


def test_writes_are_idempotent_and_deletes_exact(engine: Engine) -> None:
    """A replayed log range would change the state, or an undo would leave or take too much."""
    row = rid(1)
    for _ in range(2):
        engine.apply([put(row, 10, b"a"), put(row, 20, b"b")], (), {})
    assert len(engine.chains_of([row]).keys) == 2
    for _ in range(2):
        engine.apply((), [row + time_suffix(20), rid(9) + time_suffix(1)], {})
    assert engine.newest([row], TIME_MAX) == [b"a"]
    engine.apply((), [row + time_suffix(10)], {})
    assert engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL) == ([], [], True)


def test_state_stands_beside_the_rows(engine: Engine) -> None:
    """Named state would show up as rows, or be lost to a range delete."""
    engine.apply([put(rid(1), 1, b"a")], (), {b"x": b"1", b"y": b"2"})
    engine.apply((), (), {b"x": None, b"y": b"3"})
    engine.delete_range(b"", b"\xff" * 40)
    assert engine.state() == {b"y": b"3"}
    assert engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL).keys == []


def test_extreme_row_ids_are_rows(engine: Engine) -> None:
    """Rows at the very ends of the key space would be missed or taken for state."""
    low = bytes(8) + b"\x00\x00"
    high = b"\xff" * 8 + (4096).to_bytes(2, "big") + b"\xff" * 4096
    engine.apply([put(low, TIME_MAX, b"l"), put(high, 0, b"h")], (), {b"s": b"s"})
    found = engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL)
    assert found.values == [b"\x00l", b"\x00h"]
    assert engine.newest([low, high], TIME_MAX) == [b"l", b"h"]


ROWS = st.integers(0, 12)
VERSIONS = st.dictionaries(
    st.tuples(ROWS, st.integers(1, 6)),
    st.tuples(st.sampled_from([0, 1, 2]), st.binary(max_size=40)),
    max_size=40,
)


@pytest.mark.proves("SS-01", "SS-04")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(versions=VERSIONS, rows_max=st.integers(1, 8), bytes_max=st.integers(1, 200))
def test_scan_gives_whole_chains_in_order(
    engine: Engine,
    versions: dict[tuple[int, int], tuple[int, bytes]],
    rows_max: int,
    bytes_max: int,
) -> None:
    """A chain cut in two, out of order, or sent twice makes a wrong copy."""
    engine.delete_range(b"", b"\xff" * 40)
    pairs = [put(rid(r), t, value, flag) for (r, t), (flag, value) in versions.items()]
    engine.apply(pairs, (), {b"state": b"here"})
    cursor = b""
    seen: list[tuple[bytes, bytes]] = []
    while True:
        chains = engine.scan_chains(cursor, None, rows_max=rows_max, bytes_max=bytes_max)
        rows = [key[:-8] for key in chains.keys]
        assert not {key[:-8] for key, _ in seen} & set(rows)
        seen += zip(chains.keys, chains.values, strict=True)
        if chains.end:
            break
        assert rows
        cursor = behind(chains.last_row_id)
    assert seen == sorted(pairs)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(versions=VERSIONS, low=st.binary(max_size=12), high=st.binary(min_size=1, max_size=12))
def test_scan_bounds_and_range_delete_agree(
    engine: Engine, versions: dict[tuple[int, int], tuple[int, bytes]], low: bytes, high: bytes
) -> None:
    """A range copy or delete would take rows of the neighbouring range."""
    engine.delete_range(b"", b"\xff" * 40)
    pairs = sorted(put(rid(r), t, value, flag) for (r, t), (flag, value) in versions.items())
    engine.apply(pairs, (), {})
    inside = [key for key, _ in pairs if low <= key < high]
    assert list(engine.scan_chains(low, high, rows_max=ALL, bytes_max=ALL).keys) == inside
    if low < high:
        engine.delete_range(low, high)
    left = engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL).keys
    assert list(left) == [key for key, _ in pairs if low >= high or not low <= key < high]


@pytest.mark.proves("SS-04")
def test_a_scan_ends_at_either_limit_with_a_whole_chain(engine: Engine) -> None:
    """Each engine stops at its limit of versions or bytes, and never inside a row's chain.

    A slice of one engine would take as long, or as much memory, as a whole partition.
    """
    pairs = sorted(put(rid(row), time, b"v" * 10) for row in range(500) for time in (1, 2))
    engine.apply(pairs, (), {})
    some = engine.scan_chains(b"", None, rows_max=11, bytes_max=ALL)
    assert not some.end
    assert 11 <= len(some.keys) < 500
    assert list(some.keys) == [key for key, _ in pairs][: len(some.keys)]
    assert len(some.keys) % 2 == 0
    few = engine.scan_chains(b"", None, rows_max=ALL, bytes_max=300)
    assert not few.end
    assert 0 < len(few.keys) < 100
    assert len(few.keys) % 2 == 0


@pytest.mark.proves("SS-08")
def test_what_is_loaded_shows_and_may_be_loaded_again(engine: Engine) -> None:
    """A retried copy would fail on rows that are there, or take a newer version's place."""
    pairs = sorted(put(rid(i), 10, b"v%d" % i) for i in range(50))
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    engine.apply([put(rid(3), 20, b"newer")], (), {b"s": b"1"})
    for _ in range(2):
        engine.load(keys[:20], values[:20])
        engine.flush(wait=False)
        engine.load(keys[20:], values[20:])
        assert engine.newest([rid(1), rid(3), rid(99)], TIME_MAX) == [b"v1", b"newer", None]
    engine.flush()
    assert len(engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL).keys) == 51
    assert engine.state() == {b"s": b"1"}


class NativeCalls:
    """RocksDB as an engine calls it; counts the calls by name."""

    def __init__(self, database: Any) -> None:
        self.counted: collections.Counter[str] = collections.Counter()
        self._database = database

    def __getattr__(self, name: str) -> Any:
        """Count a call."""
        self.counted[name] += 1
        return getattr(self._database, name)


@pytest.mark.proves("SS-08")
def test_rows_are_loaded_by_one_call_and_flushed_into_sorted_files(tmp_path: Path) -> None:
    """A thousand rows of a copy take one write, and each flush one file that overlaps no other.

    A copy that was written row by row would take many times as long.
    """
    engine: Any = open_engine(EngineKind.ROCKSDB, tmp_path / "engine", RocksSettings())
    database = engine._db
    engine._db = calls = NativeCalls(database)
    pairs = sorted(put(rid(i), 10, b"v") for i in range(3000))
    for start in range(0, 3000, 1000):
        engine.load(*zip(*pairs[start : start + 1000], strict=True))
        assert calls.counted == {"write": 1}
        engine._db = database
        engine.flush()
        engine._db = calls = NativeCalls(database)
    engine._db = database
    files = sorted((file["start_key"], file["end_key"]) for file in database.live_files())
    assert len(files) == 3
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(files))
    engine.close()


def test_what_comes_after_a_flush_has_begun_is_in_no_file_with_what_came_before(
    tmp_path: Path,
) -> None:
    """Flushes that wait for their turn would be put together into one file of rows and entries."""
    engine: Any = open_engine(EngineKind.ROCKSDB, tmp_path / "engine", RocksSettings())
    for time in range(20):
        for prefix in (b"row", INDEX_PREFIX + b"id"):
            engine.load(*zip(*[put(prefix + rid(i), time) for i in range(100)], strict=True))
            engine.flush(wait=False)
    engine.flush()
    for file in engine._db.live_files():
        starts = (file["start_key"].startswith(b"row"), file["end_key"].startswith(b"row"))
        assert starts in ((True, True), (False, False))
    engine.close()


def test_a_copied_checkpoint_opens_with_the_identity_it_brings(tmp_path: Path) -> None:
    """Opening received files would wait for the disk twice more, and all threads with it."""
    engine = open_engine(EngineKind.ROCKSDB, tmp_path / "engine", RocksSettings())
    engine.apply([put(rid(1), 1, b"v")], (), {})
    engine.flush()
    engine.checkpoint(tmp_path / "copy")
    engine.close()
    identity = tmp_path / "copy" / "IDENTITY"
    brought = identity.stat().st_ino
    assert brought == (tmp_path / "engine" / "IDENTITY").stat().st_ino
    copy = open_engine(EngineKind.ROCKSDB, tmp_path / "copy", RocksSettings())
    assert identity.stat().st_ino == brought
    assert copy.newest([rid(1)], TIME_MAX) == [b"v"]
    copy.close()


def test_the_list_of_file_changes_stays_short(tmp_path: Path) -> None:
    """Each flush makes it longer, and opening a database reads all of it: 60 ms after 60,000."""
    short = RocksSettings(manifest_bytes_max=4096)
    engine = open_engine(EngineKind.ROCKSDB, tmp_path / "engine", short)
    numbers = set()
    for value in range(100):
        engine.apply([put(rid(1), 1, b"%d" % value)], (), {})
        engine.flush()
        number, size = engine.manifest()
        numbers.add(number)
        assert size < 2 * 4096
    assert len(numbers) > 2
    engine.close()
    again = open_engine(EngineKind.ROCKSDB, tmp_path / "engine", short)
    assert again.newest([rid(1)], TIME_MAX) == [b"99"]
    again.close()


def test_estimates_and_flush(engine: Engine) -> None:
    """Progress and limits would be computed from numbers that never move."""
    engine.apply([put(rid(i), 1, b"v" * 100) for i in range(100)], (), {})
    engine.flush()
    assert 90 <= engine.versions_estimate() <= 110
    assert engine.bytes_estimate() > 0
    assert engine.memory_bytes() >= 0


@given(versions=VERSIONS, before=st.integers(0, 7), over=st.booleans())
def test_collectable_never_changes_a_read_it_must_not(
    versions: dict[tuple[int, int], tuple[int, bytes]], before: int, *, over: bool
) -> None:
    """Collection would change what a read inside the retention sees, or remove an open intent."""
    engine = open_engine(EngineKind.MEMORY, Path(), RocksSettings())
    pairs = [put(rid(r), t, value, flag) for (r, t), (flag, value) in versions.items()]
    engine.apply(pairs, (), {})
    rows = sorted({rid(r) for r, _ in versions})
    want = {t: engine.newest(rows, t) for t in range(before, 8)}
    removed, soonest = collectable(
        engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL), before, lambda _: over
    )
    engine.apply((), removed, {})
    assert {t: engine.newest(rows, t) for t in want} == want
    left = engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL)
    due = [t for t in range(before, 9) if collectable(left, t, lambda _: over)[0]]
    intents = [k for k, v in pairs if v[0] == FLAG_INTENT]
    if over or not intents:
        # The next pass comes neither too late nor for nothing.
        assert due == list(range(soonest, 9))
        intents = []
    else:
        assert soonest <= min([*due, *map(time_of, intents)])
    old = [k[:-8] for k, v in zip(left.keys, left.values, strict=True) if time_of(k) <= before]
    assert set(intents) <= set(left.keys)
    assert len(old) <= len(set(old)) + len(intents)


def test_rocks_survives_reopening_and_shares_memory(tmp_path: Path) -> None:
    """Flushed rows would be lost, or each of 256 partitions would take a cache of its own."""
    shared = RocksSettings(
        resources=RocksResources(block_cache_bytes=1 << 20, write_buffers_bytes=1 << 20)
    )
    engine = open_engine(EngineKind.ROCKSDB, tmp_path / "a", shared)
    engine.apply([put(rid(1), 1, b"v")], (), {b"s": b"1"})
    engine.close()
    engine.close()
    engine = open_engine(EngineKind.ROCKSDB, tmp_path / "a", shared)
    assert engine.newest([rid(1)], 5) == [b"v"]
    assert engine.state() == {b"s": b"1"}
    engine.close()


def test_closing_waits_for_readers_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that waits for a dead disk would hold up whoever closes, and all who wait for that."""
    monkeypatch.setattr("rezone.storage.engines.rocks._CLOSE_SECONDS_MAX", 0.0)
    engine = RocksEngine(tmp_path / "engine", RocksSettings())
    engine.apply([put(rid(1), 1, b"v"), put(rid(2), 1, b"w")], (), {})
    with engine._reading():
        items = engine._db.items()
        next(items)
        for _ in range(2):
            with pytest.raises(OSError, match="1 readers do not end"):
                engine.close()
        with pytest.raises(NotReadyError):
            engine.newest([rid(2)], 1)
        assert len(list(items)) == 1, "whoever reads goes on"
        del items
    engine.close()
    engine.close()
    RocksEngine(tmp_path / "engine", RocksSettings()).close()


class RefusingToClose:
    """A database that closes and says that its last sync has failed, as RocksDB does."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def close(self) -> None:
        """Close, and raise what rocksdict raises."""
        self._real.close()
        raise Exception("IO error: While fdatasync: 000004.log: Input/output error")  # noqa: TRY002


def test_a_disk_that_fails_while_it_is_closed_does_not_keep_it_open(tmp_path: Path) -> None:
    """A failed replica would never be opened again: its node does that by closing it first."""
    engine = RocksEngine(tmp_path / "engine", RocksSettings())
    engine._db = RefusingToClose(engine._db)

    engine.close()

    RocksEngine(tmp_path / "engine", RocksSettings()).close()


def settled(engine: Any, directory: Path) -> int:
    """Return how many files of rows there are once none is merged, or was for a while."""
    before, since = -1, monotonic()
    while monotonic() - since < SETTLED_SECONDS:
        now = len(list(directory.glob("*.sst")))
        if now != before or engine._property("rocksdb.num-running-compactions"):
            before, since = now, monotonic()
        threading.Event().wait(0.02)
    return before


def merged(directory: Path) -> bool:
    """Wait until there are fewer files than were written; whether that has come."""
    over = monotonic() + MERGED_SECONDS
    while (left := len(list(directory.glob("*.sst"))) >= FILES) and monotonic() < over:
        threading.Event().wait(0.02)
    return not left


@pytest.mark.proves("NW-04")
def test_files_are_merged_only_while_the_disk_has_room_for_it(tmp_path: Path) -> None:
    """A merge would fill the disk, and again whenever the replica is opened after that."""
    room = -1
    settings = RocksSettings(has_room=lambda size: size <= room)

    def fill(engine: Engine, first: int) -> None:
        for number in range(first, first + FILES):
            engine.apply([put(rid(row), number + 1, bytes(1024)) for row in range(20)], (), {})
            engine.flush()

    engine = open_engine(EngineKind.ROCKSDB, tmp_path, settings)
    fill(engine, 0)
    assert settled(engine, tmp_path) == FILES, "merged without room"
    room = 0
    engine.look_at_room()
    assert settled(engine, tmp_path) == FILES, "what is to be merged was not counted"
    assert len(engine.scan_chains(b"", None, rows_max=ALL, bytes_max=ALL).keys) == 20 * FILES
    room = 1 << 20
    engine.look_at_room()
    assert merged(tmp_path), "not merged though there is room"
    room = -1
    fill(engine, FILES)
    engine.look_at_room()
    before = settled(engine, tmp_path)
    fill(engine, 2 * FILES)
    assert settled(engine, tmp_path) == before + FILES, "merged though room is over"
    engine.close()
