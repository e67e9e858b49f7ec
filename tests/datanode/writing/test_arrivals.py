"""Writes that come while a partition's job is at work: one append for all, an answer for each."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from replica_cluster import Coordinator, batch_of, cluster

from rezone.datanode.commit.insync import Outcome
from rezone.datanode.replica.replica import Replica
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.writing import arrivals
from rezone.datanode.writing.change import Change, PreparedRows
from rezone.datanode.writing.transacting import prepare_intents
from rezone.datanode.writing.write import ENTRY_OVERHEAD_BYTES, prepare
from rezone.storage.engines.base import TIME_MAX
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.codec.keyspace import range_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import (
    NotReadyError,
    OverloadedError,
    ProducerFencedError,
    RezoneError,
    RowLockedError,
)
from rezone.wire.messages import Seal, TransactionTimes, WriteRequest, WriteResult

P = 0
SECONDS = 30.0


class Given(NamedTuple):
    """A write as a data channel gives it to a replica."""

    request: WriteRequest
    prepared: PreparedRows


def given(
    c: Coordinator, key: bytes, value: bytes, *, producer: int, sequence: int = 1, epoch: int = 0
) -> Given:
    """Return a producer's write of one row."""
    request = WriteRequest(
        opaque=sequence,
        partition=P,
        producer_id=str(uuid.UUID(int=producer)),
        sequence=sequence,
        producer_epoch=epoch,
    )
    body = memoryview(to_ipc(batch_of({key: value})))
    return Given(request, prepare(request, body, RowCodec(c.config.table), range_of(0, 1)))


class Bench:
    """A leader whose job a test can hold, and the answers of the writes that were given to it."""

    def __init__(self, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replica = replica
        self.answers: dict[str, queue.SimpleQueue[Outcome]] = {}
        self.appends: list[int] = []
        self._held = False
        node, append = replica.host, replica.store.append
        runs, wake = node.runs, node.wake

        def held_wake(job: Job) -> None:
            if not (self._held and job is replica.job):
                wake(job)

        def counted(raw: bytes) -> int:
            before = replica.store.log_end
            self.appends.append(append(raw) - before)
            return replica.store.log_end

        monkeypatch.setattr(node, "runs", lambda job: self._held or runs(job))
        shares = replica.intake.shares

        def behind_others(request: Change) -> bool:
            return shares(request) or (self._held and isinstance(request, WriteRequest))

        monkeypatch.setattr(replica.intake, "shares", behind_others)
        monkeypatch.setattr(node, "wake", held_wake)
        monkeypatch.setattr(replica.store, "append", counted)

    def write(self, name: str, one: Given) -> None:
        """Give a write to the replica."""
        self.answers[name] = queue.SimpleQueue()
        try:
            self.replica.write(*one, self.answers[name].put)
        except RezoneError as error:
            self.answers[name].put(error)

    def answer(self, name: str) -> Outcome:
        """Return how a write has ended."""
        return self.answers[name].get(timeout=SECONDS)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the job at work until the block ends."""
        self._held = True
        yield
        self.appends.clear()
        self._held = False
        self.replica.wake()


@contextmanager
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int = 2
) -> Iterator[tuple[Coordinator, Bench]]:
    """Run a partition whose leader is in this process."""
    with cluster(tmp_path, nodes) as c:
        c.create(P, tuple(range(nodes)))
        made = Bench(c.replica(0), monkeypatch)
        for producer in range(1, 6):
            name = f"known {producer}"
            made.write(name, given(c, b"known%d" % producer, b"", producer=producer))
            assert isinstance(made.answer(name), WriteResult)
        yield c, made


def found(replica: Replica, key: bytes) -> bytes | None:
    """Return the value of a row."""
    codec = RowCodec(replica.config.table)
    keys = batch_of({key: b""}).select(["key"])
    row_ids = prepare(
        WriteRequest(opaque=1, partition=P, producer_id="", sequence=1, delete=True),
        memoryview(to_ipc(keys)),
        codec,
        range_of(0, 1),
    ).rows.column(0)
    (value,) = replica.store.reader.newest(row_ids.to_pylist(), TIME_MAX)
    return value


def test_what_waits_is_appended_at_once_and_refused_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes of several producers make one append; of these one is fenced and one row is locked.

    A refused write would take those with it that share its append, or be acknowledged like them.
    """
    with bench(tmp_path, monkeypatch) as (c, made):
        replica = made.replica
        now = replica.store.applied_time
        lock = given(c, b"locked", b"t", producer=9)
        lock = Given(
            WriteRequest(
                opaque=1,
                partition=P,
                producer_id=str(uuid.UUID(int=9)),
                sequence=1,
                transaction=TransactionTimes(read_time=now, begun=now),
            ),
            lock.prepared,
        )
        assert lock.request.transaction is not None
        intents = prepare_intents(replica, lock.prepared, lock.request.transaction)
        made.write("intents", Given(lock.request, intents))
        assert isinstance(made.answer("intents"), WriteResult)
        made.write("opens", given(c, b"e", b"", producer=5, epoch=3))
        assert isinstance(made.answer("opens"), WriteResult)
        with made.held():
            made.write("a", given(c, b"a", b"1", producer=1, sequence=2))
            made.write("fenced", given(c, b"b", b"1", producer=5, sequence=2, epoch=2))
            made.write("locked", given(c, b"locked", b"1", producer=2, sequence=2))
            made.write("c", given(c, b"c", b"1", producer=3, sequence=2))
            made.write("d", given(c, b"a", b"2", producer=4, sequence=2))
            assert all(waiting.empty() for name, waiting in made.answers.items() if name in "acd")
        first, second, third = (made.answer(name) for name in "acd")
        assert isinstance(made.answer("fenced"), ProducerFencedError)
        assert isinstance(made.answer("locked"), RowLockedError)
        assert made.appends[0] == 3, made.appends
        assert isinstance(first, WriteResult)
        assert isinstance(second, WriteResult)
        assert isinstance(third, WriteResult)
        ends = [first.end_offset, second.end_offset, third.end_offset]
        assert ends == [ends[0], ends[0] + 1, ends[0] + 2]
        assert first.commit_time < second.commit_time < third.commit_time
        assert (found(replica, b"a") or b"").endswith(b"2")
        assert found(replica, b"b") is None
        assert replica.intake.budget.used == 0


def test_repeats_and_new_producers_among_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat behind its first try is answered as that was, also of a producer that is new.

    Planned by the log alone, which has the first try only after the append, it would apply twice.
    """
    with bench(tmp_path, monkeypatch) as (c, made):
        new, known = given(c, b"n", b"1", producer=7), given(c, b"k", b"1", producer=1, sequence=2)
        before = made.replica.store.log_end
        with made.held():
            for name, one in (("n", new), ("n again", new), ("k", known), ("k again", known)):
                made.write(name, one)
            made.write("k next", given(c, b"k", b"2", producer=1, sequence=3))
        for name in ("n", "k"):
            first, again = made.answer(name), made.answer(f"{name} again")
            assert isinstance(first, WriteResult)
            assert isinstance(again, WriteResult)
            assert (first.end_offset, first.commit_time) == (again.end_offset, again.commit_time)
        assert isinstance(made.answer("k next"), WriteResult)
        assert made.replica.store.log_end == before + 3
        assert made.replica.intake.budget.used == 0


def test_what_waits_when_a_partition_is_sealed_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal that comes first leaves what waits for it unwritten, and a stop answers it.

    An entry behind the seal would be lost to the partition's targets; a caller would wait for ever.
    """
    with bench(tmp_path, monkeypatch) as (c, made):
        replica = made.replica
        record = c.change(P, sealing=True)
        with made.held():
            made.write("w", given(c, b"w", b"1", producer=1, sequence=2))
            with replica.lock:
                replica.sealing.start(
                    Seal(fence=c.fence(), partition=P, leader_epoch=record.leader_epoch)
                )
            sealed = replica.store.log_end
        assert not isinstance(made.answer("w"), WriteResult)
        assert replica.store.log_end == sealed
        with made.held():
            made.write("late", given(c, b"x", b"1", producer=2, sequence=2))
            replica.stop()
            assert isinstance(made.answer("late"), RezoneError)
        made.write("after", given(c, b"x", b"1", producer=2, sequence=2))
        assert isinstance(made.answer("after"), NotReadyError)
        assert replica.intake.budget.used == 0


def test_what_waits_is_bounded_and_a_full_disk_refuses_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits counts as pending bytes; where the append fails each write is refused.

    A leader with a slow disk would take writes until its memory is full, or answer none of them.
    """
    with bench(tmp_path, monkeypatch) as (c, made):
        budget = made.replica.intake.budget
        with made.held():
            made.write("a", given(c, b"a", b"1", producer=1, sequence=2))
            budget.limit = budget.used + ENTRY_OVERHEAD_BYTES
            made.write("too much", given(c, b"b", b"1", producer=2, sequence=2))
            assert isinstance(made.answer("too much"), OverloadedError)
            budget.limit = 1 << 30
            made.write("b", given(c, b"b", b"1", producer=2, sequence=2))

            def full(raw: bytes) -> int:
                raise OSError(28, "no space", str(len(raw)))

            monkeypatch.setattr(made.replica.store, "append", full)
        for name in "ab":
            answer = made.answer(name)
            assert isinstance(answer, NotReadyError)
        assert budget.used == 0


def test_the_first_write_does_not_wait_for_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write goes to the followers although the job waits for a disk; one behind it waits.

    A new leader's first write would wait for what its disk does in the middle of the write gap.
    """
    with bench(tmp_path, monkeypatch, nodes=3) as (c, made):
        replica = made.replica
        at_work, go_on = threading.Event(), threading.Event()
        sync = replica.store.sync

        def slow() -> int:
            at_work.set()
            go_on.wait(SECONDS)
            return sync()

        monkeypatch.setattr(replica.store, "sync", slow)
        before = replica.store.log_end
        made.write("a", given(c, b"a", b"1", producer=1, sequence=2))
        assert at_work.wait(SECONDS)
        try:
            c.until(
                "the followers have it",
                lambda: set(c.report(0, P).follower_offsets.values()) == {before + 1},
            )
            made.write("b", given(c, b"b", b"1", producer=2, sequence=2))
            made.write("c", given(c, b"c", b"1", producer=3, sequence=2))
            assert replica.store.log_end == before + 1
            made.appends.clear()
        finally:
            go_on.set()
        assert all(isinstance(made.answer(name), WriteResult) for name in "abc")
        assert made.appends == [2]


def test_a_piece_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries over the limit of one piece make several appends, in their order.

    All that waits would be copied once more, however much it is.
    """
    monkeypatch.setattr(arrivals, "GROUP_BYTES_MAX", 1)
    with bench(tmp_path, monkeypatch) as (c, made):
        with made.held():
            for producer in (1, 2):
                made.write(str(producer), given(c, b"r", b"1", producer=producer, sequence=2))
        ends = [made.answer(name) for name in ("1", "2")]
        assert all(isinstance(end, WriteResult) for end in ends)
        assert made.appends[:2] == [1, 1]
