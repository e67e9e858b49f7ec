"""The store of a partition: apply, undo, collect, duplicates, crash recovery."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from storage_kit import (
    ENGINES,
    Writer,
    config,
    copy_directory,
    rid,
    stored_rows,
    stored_versions,
)

from rezone.storage.engines.base import TIME_MAX
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.log.entry import NO_DIGEST
from rezone.storage.state.meta import MetaFile, PartitionMeta, branch_end, branches_until
from rezone.storage.state.producers import PRODUCER_BYTES, ProducerTable, uuid_bytes, uuid_text
from rezone.storage.store import PartitionStore, ResetNeededError
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.errors import ConflictError, CorruptionError, SnapshotExpiredError
from rezone.wire.messages import EngineKind, FailoverEntry, Role

W1, W2 = b"1" * 16, b"2" * 16


class ReadWithoutEnd(NamedTuple):
    """A partition with a running read: its directory, its rows, what ends the read."""

    store: PartitionStore
    directory: Path
    rows: dict[bytes, bytes]
    end: Callable[[], None]


@pytest.fixture
def store(kind: EngineKind, tmp_path: Path) -> Iterator[PartitionStore]:
    """Open an empty partition on each engine."""
    opened = PartitionStore.open(tmp_path / "p", config(kind))
    yield opened
    opened.close()


def some_rows(seed: int, count: int, keys: int = 20, size: int = 30) -> dict[bytes, bytes | None]:
    """Return rows of one entry, a fifth of them deletes."""
    chance = random.Random(seed)
    chosen = chance.sample(range(keys), count)
    return {
        rid(k): None if chance.random() < 0.2 else b"%d-" % seed + b"x" * chance.randrange(size)
        for k in chosen
    }


def test_apply_in_parts_gives_the_state_at_each_offset(store: PartitionStore) -> None:
    """A reader would see rows that are not applied yet, or miss some that are."""
    writer = Writer(store)
    ends = [writer.write(some_rows(i, 5)) for i in range(12)]
    for end in ends:
        assert store.apply_to(end - 1) == end - 5, "half an entry must not be applied"
        assert store.apply_to(end) == end
        assert stored_versions(store) == writer.versions(end)
        assert stored_rows(store) == writer.visible(end)
        assert store.reader.newest([rid(k) for k in range(20)]) == [
            writer.visible(end).get(rid(k)) for k in range(20)
        ]
    assert store.applied_time == store.last_commit_time
    for base, time, _ in writer.history:
        assert stored_rows(store, as_of=time) == writer.visible(base + 1)


def test_large_entry_shows_whole_or_not_at_all(store: PartitionStore) -> None:
    """A batch is all or nothing: a read in the middle would see half of it."""
    writer = Writer(store)
    store.apply_to(writer.write({rid(k): b"old" for k in range(40)}))
    end = writer.write({rid(k): b"n" * 500 for k in range(40)})
    seen: list[set[bytes]] = []
    engine: Any = store.engine

    def spied(write: Callable[..., None]) -> Callable[..., None]:
        def writing(*arguments: object) -> None:
            write(*arguments)
            seen.append(set(stored_rows(store).values()))
            seen.append({v for v in store.reader.newest([rid(k) for k in range(40)]) if v})

        return writing

    engine.load, engine.apply = spied(engine.load), spied(engine.apply)
    store.apply_to(end)
    assert len(seen) > 10
    assert all(values in ({b"old"}, {b"n" * 500}) for values in seen)
    assert set(stored_rows(store).values()) == {b"n" * 500}
    assert store.durable_end == end, "an entry in several steps is durable before the first"


@pytest.mark.proves("DCP-05")
@pytest.mark.parametrize("applied_entries", [0, 3, 7, 10])
@pytest.mark.parametrize("keep_entries", [0, 2, 7, 9])
def test_truncate_undoes_exactly_the_suffix(
    store: PartitionStore, applied_entries: int, keep_entries: int
) -> None:
    """After a rollback a replica would still show rows of the branch that lost, or miss others."""
    writer = Writer(store)
    ends = [0] + [writer.write(some_rows(i, 6)) for i in range(10)]
    store.apply_to(ends[applied_entries])
    store.truncate(ends[keep_entries])
    applied = min(ends[applied_entries], ends[keep_entries])
    assert (store.log_end, store.applied) == (ends[keep_entries], applied)
    assert stored_versions(store) == writer.versions(applied)
    writer.epoch = 2
    store.apply_to(writer.write(some_rows(77, 6)))
    assert stored_versions(store) == writer.versions(store.log_end)
    assert stored_rows(store) == writer.visible(store.log_end)


def test_truncate_refuses_inside_an_entry_and_below_the_log(store: PartitionStore) -> None:
    """A rollback that cannot be undone would be taken for done."""
    writer = Writer(store)
    for i in range(30):
        writer.write(some_rows(i, 6))
    store.apply_to(store.log_end)
    with pytest.raises(ConflictError):
        store.truncate(3)
    store.trim(0, store.log_end)
    assert 0 < store.log_start < store.log_end
    with pytest.raises(ResetNeededError):
        store.truncate(0)
    before = stored_versions(store)
    with pytest.raises(SnapshotExpiredError):
        store.read(0, 100)
    assert stored_versions(store) == before
    store.truncate(store.log_start)
    assert store.applied == store.log_start


def test_trim_keeps_what_is_asked_for_and_what_is_not_applied(store: PartitionStore) -> None:
    """A follower would need a snapshot for nothing, or a restart would lose rows."""
    writer = Writer(store)
    for i in range(30):
        writer.write(some_rows(i, 6))
    store.trim(0, store.log_end)
    assert store.log_start == 0, "nothing is applied yet"
    store.apply_to(store.log_end)
    store.trim(0, 60)
    assert 0 < store.log_start <= 60
    store.trim(1 << 40, store.log_end)
    assert store.log_start <= 60


def test_collect_never_changes_what_may_be_read_or_undone(store: PartitionStore) -> None:
    """A read inside the retention would change, or a rollback would uncover a hole."""
    writer = Writer(store)
    ends = [writer.write(some_rows(i, 8)) for i in range(20)]
    store.apply_to(store.log_end)
    store.note_committed(ends[9])
    cursor: bytes | None = b""
    removed = 0
    while cursor is not None:
        cursor, count, _ = store.collect(TIME_MAX, cursor, 100)
        removed += count
    assert removed > 20
    for base, time, _ in writer.history[9:]:
        assert stored_rows(store, as_of=time) == writer.visible(base + 1)
    store.truncate(ends[9])
    assert stored_rows(store) == writer.visible(ends[9])


def test_meta_that_may_wait_reaches_the_disk_with_the_next_that_may_not(tmp_path: Path) -> None:
    """A replica would ack in an epoch that it forgets with the next crash."""
    meta = MetaFile(tmp_path, PartitionMeta(partition=0))
    meta.update(revision=1)
    meta.update(leader_epoch=5, durable=False)
    assert meta.value.leader_epoch == 5
    assert MetaFile(tmp_path, PartitionMeta(partition=0)).value.leader_epoch == 0
    meta.update(revision=1)
    assert MetaFile(tmp_path, PartitionMeta(partition=0)).value.leader_epoch == 5


def test_writer_table_over_log_engine_and_rollback(store: PartitionStore) -> None:
    """A retried write would be applied twice, or a new one taken for a retry."""
    writer = Writer(store)
    first = writer.write({rid(1): b"a"}, W1, 1)
    assert store.producer(W1, 0)[1] == (0, 1, first, 10, NO_DIGEST)
    assert store.producer(W2, 0)[1] is None
    second = writer.write({rid(2): b"a"}, W2, 5)
    third = writer.write({rid(1): b"b"}, W1, 2)
    store.apply_to(second)
    assert store.producer(W1, 0)[1] == (0, 2, third, 30, NO_DIGEST)
    store.truncate(second)
    assert store.producer(W1, 0)[1] == (0, 1, first, 10, NO_DIGEST)
    writer.write({rid(1): b"b"}, W1, 2)
    store.apply_to(store.log_end)
    assert store.producer(W1, 0)[1] == (0, 2, third, 30, NO_DIGEST)
    store.truncate(first)
    assert store.producer(W1, 0)[1] == (0, 1, first, 10, NO_DIGEST)
    # The batch before is in no log any more: its sequence still is known from the undone one.
    assert store.producer(W2, 0)[1] == (0, 4, first, 10, NO_DIGEST)
    store.truncate(0)
    assert store.producer(W1, 0)[1] == (0, 0, 0, 0, NO_DIGEST)


def test_writer_table_is_bounded(tmp_path: Path, kind: EngineKind) -> None:
    """A partition with ever new writers would grow without limit."""
    forgetful = config(kind, producers_max=10, producer_seconds_min=0.0)
    store = PartitionStore.open(tmp_path / "p", forgetful)
    writer = Writer(store)
    for i in range(50):
        store.apply_to(writer.write({rid(i): b"v"}, b"%016d" % i, 1))
    known = [i for i in range(50) if store.producer(b"%016d" % i, 0)[1]]
    assert known[-9:] == list(range(41, 50))
    assert len(known) <= 10
    assert len(store.engine.state()) <= 12
    store.close()
    assert uuid_bytes(uuid_text(W1)) == W1
    assert ProducerTable(3).get(W1 + bytes(4)) is None


def test_nobody_is_forgotten_who_has_just_written(tmp_path: Path, kind: EngineKind) -> None:
    """With very many writers a retried batch would be applied a second time."""
    keep = 200
    store = PartitionStore.open(
        tmp_path / "p", config(kind, producers_max=10, producer_seconds_min=keep / 1e6)
    )
    writer = Writer(store)  # its entries are ten microseconds apart
    for i in range(15):
        store.apply_to(writer.write({rid(i): b"v"}, b"%016d" % i, 1))
    assert all(store.producer(b"%016d" % i, 0)[1] for i in range(15))
    assert not store.has_room_for_producer(store.last_commit_time + keep - 150)
    assert store.has_room_for_producer(store.last_commit_time + keep)
    for _ in range(20):
        store.apply_to(writer.write({rid(0): b"v"}, b"%016d" % 14, 1))
    known = [i for i in range(15) if store.producer(b"%016d" % i, 0)[1]]
    assert known == list(range(6, 15))
    assert store.has_room_for_producer(0)
    assert store.producer_bytes == 9 * PRODUCER_BYTES
    store.limit_producers(9 * PRODUCER_BYTES)
    assert not store.has_room_for_producer(0)
    store.limit_producers(1 << 30)
    assert store.has_room_for_producer(0), "no more than the configuration allows, no less either"
    store.close()


@pytest.mark.proves("DCP-05")
def test_failover_log_helpers(store: PartitionStore) -> None:
    """A consumer on a lost branch would be told to go on instead of to roll back."""
    log = (FailoverEntry("a", 0), FailoverEntry("b", 10), FailoverEntry("c", 10))
    assert [branch_end(log, name, 25) for name in "abcx"] == [10, 10, 25, None]
    assert branches_until(log, 9) == log[:1]
    store.update_meta(failover_log=log)
    assert branch_end(store.meta.failover_log, "a", store.log_end) == 10
    assert branch_end(store.meta.failover_log, "c", store.log_end) == store.log_end


def test_meta_is_durable_and_checked(tmp_path: Path) -> None:
    """A replica would forget the highest epoch it has seen, and follow a deposed coordinator."""
    store = PartitionStore.open(tmp_path / "p", config(partition=7))
    store.update_meta(coordinator_epoch=3, leader_epoch=4, revision=5, role=Role.LEADER)
    store.note_committed(9)
    store.update_meta(partition_uuid="u", failover_log=(FailoverEntry("u", 0),))
    copy_directory(tmp_path / "p", tmp_path / "crash")
    again = PartitionStore.open(tmp_path / "crash", config(partition=7))
    assert msgspec.structs.replace(again.meta, serial=0) == PartitionMeta(
        partition=7,
        partition_uuid="u",
        failover_log=(FailoverEntry("u", 0),),
        coordinator_epoch=3,
        leader_epoch=4,
        revision=5,
        role=Role.LEADER,
        committed_offset=0,
    )
    again.close()
    (tmp_path / "crash" / "meta.journal").write_bytes(b"{}")
    with pytest.raises(CorruptionError):
        PartitionStore.open(tmp_path / "crash", config())
    store.close()


@pytest.mark.proves("B-04")
def test_digest_depends_on_visible_rows_only(
    store: PartitionStore, kind: EngineKind, tmp_path: Path
) -> None:
    """A copy that differs would pass verification, or a right one fail it."""
    writer = Writer(store)
    for i in range(10):
        writer.write(some_rows(i, 8))
    store.apply_to(store.log_end)
    rows = writer.visible(store.log_end)
    other_kind = next(k for k in ENGINES if k is not kind)
    other = PartitionStore.open(tmp_path / "other", config(other_kind))
    Writer(other).write(dict(rows))
    other.apply_to(other.log_end)
    digests, counts = store.reader.digest(ranges=5)
    assert (digests, counts) == other.reader.digest(ranges=5)
    assert sum(counts) == len(rows)
    assert len(set(digests)) == 5
    middle = HASH_SPACE // 2
    halves = [
        store.reader.digest(None, 0, middle, 2),
        store.reader.digest(None, middle, HASH_SPACE, 2),
    ]
    assert halves[0][0] + halves[1][0] == store.reader.digest(ranges=4)[0]
    changed = dict(rows)
    a, b = list(changed)[:2]
    changed[a], changed[b] = (changed[a] or b"") + b[:1], changed[b]
    Writer(other).write(changed)
    other.apply_to(other.log_end)
    assert store.reader.digest() != other.reader.digest()
    time = writer.history[4][1]
    assert sum(store.reader.digest(as_of=time)[1]) == len(writer.visible(writer.history[5][0]))
    with pytest.raises(ValueError, match="cut"):
        store.reader.digest(ranges=0)
    other.close()


# --- crashes --------------------------------------------------------------------------------


def test_crash_at_any_point_keeps_synced_rows(tmp_path: Path) -> None:
    """An acknowledged row would be lost with the process."""
    seed = random.randrange(1 << 30)
    print("seed", seed)  # noqa: T201 - repeats a failure
    chance = random.Random(seed)
    store = PartitionStore.open(tmp_path / "p", config())
    writer = Writer(store)
    for step in range(25):
        writer.write(some_rows(seed + step, 6), W1, step + 1)
        if chance.random() < 0.6:
            store.apply_to(chance.randrange(store.log_end + 1))
        if chance.random() < 0.2:
            store.flush()
        if chance.random() < 0.1:
            store.trim(4096, store.log_end)
        if chance.random() < 0.15:
            base = chance.choice([past[0] for past in writer.history[-4:]])
            store.truncate(max(base, store.log_start))
            writer.history = [past for past in writer.history if past[0] < store.log_end]
        if step % 5 == 4:
            check_crash(store, writer, tmp_path / f"crash{step}")
    store.close()


def check_crash(store: PartitionStore, writer: Writer, path: Path) -> None:
    """Copy the directory as a killed process leaves it, and open the copy."""
    end = store.sync()
    copy_directory(path.with_name("p"), path)
    again = PartitionStore.open(path, config())
    assert again.log_end == end == again.durable_end
    assert again.log_start == store.log_start
    assert again.applied <= store.applied
    assert again.last_commit_time == store.last_commit_time
    assert again.producer(W1, 0)[1] == store.producer(W1, 0)[1]
    again.apply_to(end)
    assert stored_versions(again) == writer.versions(end)
    again.truncate(again.log_start)
    assert stored_versions(again) == writer.versions(again.log_start)
    again.close()


def test_torn_tail_below_what_the_engine_has(tmp_path: Path) -> None:
    """A log that lost its end would be followed by rows the engine counts differently."""
    store = PartitionStore.open(tmp_path / "p", config(log_segment_bytes=1 << 20))
    writer = Writer(store)
    ends = [writer.write(some_rows(i, 5)) for i in range(6)]
    store.apply_to(ends[4])
    store.flush()
    want = stored_versions(store)
    copy_directory(tmp_path / "p", tmp_path / "crash")
    store.close()
    file = next((tmp_path / "crash" / "log").glob("*.log"))
    os.truncate(file, file.stat().st_size // 2)
    again = PartitionStore.open(tmp_path / "crash", config())
    assert (again.log_start, again.log_end, again.applied) == (ends[4], ends[4], ends[4])
    assert again.last_commit_time == writer.history[4][1]
    assert stored_versions(again) == want
    with pytest.raises(ResetNeededError):
        again.truncate(ends[3])
    again.close()


def test_memory_engine_after_a_restart(tmp_path: Path) -> None:
    """A Memory partition would come up empty and pretend to have its rows."""
    store = PartitionStore.open(tmp_path / "p", config(EngineKind.MEMORY))
    writer = Writer(store)
    for i in range(10):
        writer.write(some_rows(i, 5))
    store.apply_to(store.log_end)
    store.close()
    store = PartitionStore.open(tmp_path / "p", config(EngineKind.MEMORY))
    assert (store.applied, store.meta.needs_snapshot) == (0, False)
    store.apply_to(store.log_end)
    assert stored_rows(store) == writer.visible(store.log_end)
    store.trim(0, store.log_end)
    assert store.log_start > 0
    store.close()
    store = PartitionStore.open(tmp_path / "p", config(EngineKind.MEMORY))
    assert (store.applied, store.meta.needs_snapshot) == (0, True)
    store.close()


@pytest.fixture
def read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadWithoutEnd]:
    """Run a partition of which a read does not end in the time that closing waits."""
    monkeypatch.setattr("rezone.storage.engines.rocks._CLOSE_SECONDS_MAX", 0.0)
    store = PartitionStore.open(tmp_path / "p", config())
    writer = Writer(store)
    writer.write({rid(k): b"v%d" % k for k in range(10)})
    store.apply_to(writer.write({rid(1): b"w"}))
    engine = store.engine
    assert isinstance(engine, RocksEngine)
    reading = contextlib.ExitStack()
    reading.enter_context(engine._reading())
    yield ReadWithoutEnd(store, tmp_path / "p", writer.visible(store.log_end), reading.close)
    reading.close()
    store.close()


def test_closing_goes_on_when_the_reader_that_kept_it_is_gone(
    read_without_end: ReadWithoutEnd, tmp_path: Path
) -> None:
    """The database would stay locked for good, and the partition could not be opened again."""
    store, directory, rows, end = read_without_end
    for _ in range(2):
        with pytest.raises(OSError, match="1 readers do not end"):
            store.close()
    copy_directory(directory, tmp_path / "crash")
    crashed = PartitionStore.open(tmp_path / "crash", config())
    assert (crashed.applied, stored_rows(crashed)) == (11, rows), "flushed before it waited"
    crashed.close()
    end()
    for _ in range(2):
        store.close()
    again = PartitionStore.open(directory, config())
    assert (again.applied, again.log_end, stored_rows(again)) == (11, 11, rows)
    again.close()


def test_nothing_is_deleted_under_a_reader(read_without_end: ReadWithoutEnd) -> None:
    """The next replica of the partition would find files locked that nobody closes any more."""
    store, directory, _, end = read_without_end
    before = sorted(directory.rglob("*"))
    for _ in range(2):
        with pytest.raises(OSError, match="1 readers do not end"):
            store.destroy()
    assert sorted(directory.rglob("*")) == before
    end()
    for _ in range(2):
        store.destroy()
    assert not directory.exists()
    PartitionStore.open(directory, config()).destroy()


def test_a_partition_that_could_not_be_closed_is_destroyed(
    read_without_end: ReadWithoutEnd,
) -> None:
    """Its files would go while its engine still has them open."""
    store, directory, _, end = read_without_end
    for act in (store.close, store.destroy):
        with pytest.raises(OSError, match="1 readers do not end"):
            act()
    assert directory.exists()
    end()
    store.destroy()
    assert not directory.exists()


def test_reset_and_destroy(store: PartitionStore, tmp_path: Path) -> None:
    """A copy would begin over old rows; a dropped partition would leave its files."""
    store.update_meta(leader_epoch=4, failover_log=(FailoverEntry("a", 0),))
    writer = Writer(store)
    store.apply_to(writer.write(some_rows(1, 8), W1, 3))
    store.note_committed(store.log_end)
    store.reset()
    assert (store.log_start, store.log_end, store.applied, store.committed) == (0, 0, 0, 0)
    assert stored_versions(store) == []
    assert store.producer(W1, 0)[1] is None
    assert store.meta.needs_snapshot
    assert (store.meta.leader_epoch, store.meta.failover_log) == (4, ())
    store.destroy()
    store.destroy()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", ["", "a row", "state", "a log", "committed", "history"])
def test_only_a_store_in_which_nothing_was_keeps_its_engine(
    store: PartitionStore, left: str
) -> None:
    """Each first copy would open one more engine than it needs; or begin over what is left."""
    store.update_meta(needs_snapshot=True)
    match left:
        case "a row":
            store.engine.apply([(rid(1) + b"\0" * 8, b"\1x")], (), {})
        case "state":
            store.engine.apply((), (), {b"s": b"x"})
        case "a log":
            Writer(store).write(some_rows(1, 8))
        case "committed":
            store.note_committed(7)
        case "history":
            store.update_meta(failover_log=(FailoverEntry("a", 0),), partition_uuid="a")
    engine = store.engine
    store.reset()
    assert (store.engine is engine) == (not left)
    assert (store.log_start, store.log_end, store.applied, store.committed) == (0, 0, 0, 0)
    assert not stored_versions(store)
    assert not store.engine.state()
    assert (store.meta.needs_snapshot, store.meta.failover_log) == (True, ())


def test_interrupted_reset_is_completed(tmp_path: Path) -> None:
    """A crash inside a reset would leave half of the old rows under a new copy."""
    store = PartitionStore.open(tmp_path / "p", config())
    store.apply_to(Writer(store).write(some_rows(1, 8)))
    store.update_meta(resetting=True)
    store.close()
    store = PartitionStore.open(tmp_path / "p", config())
    assert (store.log_end, store.applied, store.meta.resetting) == (0, 0, False)
    assert store.meta.needs_snapshot
    store.close()


KILLED = """
import sys
from pathlib import Path
from storage_kit import Writer, config, rid
from rezone.storage.store import PartitionStore
store = PartitionStore.open(Path(sys.argv[1]), config())
writer = Writer(store)
step = 0
while True:
    step += 1
    end = writer.write({rid(step % 50 + i): b"%d" % step for i in range(7)})
    if step % 3 == 0:
        print(store.sync(), flush=True)
    if step % 2 == 0:
        store.apply_to(end)
    if step % 17 == 0:
        store.flush()
    if step % 40 == 0:
        store.trim(20000, end)
"""


@pytest.mark.slow
def test_killed_process_loses_nothing_synced(tmp_path: Path) -> None:
    """SIGKILL at an arbitrary moment would lose rows that were reported durable."""
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(KILLED))
    promised = 0
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "p")],
        stdout=subprocess.PIPE,
        # The writer imports what this test imports, from where pytest found it.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    assert process.stdout is not None
    for _, line in zip(range(400), process.stdout, strict=False):
        promised = int(line)
    process.send_signal(signal.SIGKILL)
    promised = max([promised, *(int(line) for line in process.stdout if line.endswith("\n"))])
    process.wait(10)
    process.stdout.close()
    store = PartitionStore.open(tmp_path / "p", config())
    assert store.log_end >= promised >= 400
    store.apply_to(store.log_end)
    # What the rows must be follows from the step alone.
    steps = store.log_end // 7
    want = {rid(s % 50 + i): b"%d" % s for s in range(1, steps + 1) for i in range(7)}
    assert stored_rows(store) == dict(sorted(want.items()))
    store.close()


def test_reads_run_beside_writes_and_close_waits(tmp_path: Path) -> None:
    """A reader in a thread would crash the process when the partition is closed under it."""
    store = PartitionStore.open(tmp_path / "p", config())
    writer = Writer(store)
    store.apply_to(writer.write({rid(k): b"0" for k in range(40)}))
    stop, errors = threading.Event(), []

    def read() -> None:
        try:
            while not stop.is_set():
                assert len(set(store.reader.newest([rid(k) for k in range(40)]))) == 1
                assert len(set(stored_rows(store, as_of=10).values())) == 1
        except Exception as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(1, 60):
        store.apply_to(writer.write({rid(k): b"%d" % i for k in range(40)}))
    stop.set()
    for thread in threads:
        thread.join(10)
    assert errors == []
    store.close()
    again = PartitionStore.open(tmp_path / "p", config())
    assert again.applied == writer.store.log_end
    sizes = again.sizes()
    assert sizes.log_bytes > 0
    assert msgspec.to_builtins(sizes)["versions"] > 0
    again.close()
