"""Batches that two write at a time, at partitions that know what a leader knows."""

from __future__ import annotations

import functools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from rezone.client.operations import sequenced
from rezone.client.operations.sequenced import Sequenced, SequencedWrites, intervals_of
from rezone.client.routing.placement import Placement
from rezone.transfer.sink import submitting
from rezone.transfer.sink.submitting import SequencedRows
from rezone.wire.codec import bodies
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.producers import digest_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, RowLimits, TableSchema
from rezone.wire.errors import ConflictError, NotReadyError, ReshardedError, SequenceReusedError
from rezone.wire.layouts import Layout, generation_of, targets_of
from rezone.wire.messages import PartitionId, WriteRequest, ZoneConfig

TABLE = TableSchema(columns=(Column("id", ColumnType.INT64),), primary_key=("id",))
CODEC = RowCodec(TABLE, RowLimits(batch_rows_max=8))
ROWS, BATCHES = 90, 3
GENERATIONS_MAX = 7
"""So many re-shardings may come on the way: a request has eight earlier names."""

SlotId = tuple[str, PartitionId]


class DiedError(Exception):
    """Whoever wrote is gone."""


class Turns:
    """Threads of which one goes on at a time, up to where it takes its next turn."""

    def __init__(self) -> None:
        self._came = threading.Semaphore(0)
        self._going: dict[str, threading.Semaphore] = {}
        self._threads: dict[str, threading.Thread] = {}
        self.errors: list[BaseException] = []

    def begin(self, name: str, act: Callable[[], None]) -> None:
        """Begin to act in a thread, up to its first turn."""

        def run() -> None:
            try:
                act()
            except DiedError:
                pass
            except BaseException as error:  # noqa: BLE001 - told to the test
                self.errors.append(error)
            finally:
                del self._threads[name]
                self._came.release()

        self._going[name] = threading.Semaphore(0)
        self._threads[name] = threading.Thread(target=run, daemon=True)
        self._threads[name].start()
        assert self._came.acquire(timeout=20)

    def take(self, name: str) -> None:
        """Wait for a turn."""
        self._came.release()
        self._going[name].acquire()

    @property
    def waiting(self) -> list[str]:
        """Who waits for a turn."""
        return sorted(self._threads)

    def give(self, name: str) -> None:
        """Give somebody a turn, and wait until it waits for the next one or has ended."""
        self._going[name].release()
        assert self._came.acquire(timeout=20)


class Model:
    """A zone whose partitions remember the last batch by producer and partition it was sent to.

    It is sealed here and there before it is asked for something.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.layout, self.next = Layout(0, rng.randrange(1, 5)), Layout(1, rng.randrange(1, 5))
        self.sealed: set[PartitionId] = set()
        self.known: dict[PartitionId, dict[SlotId, tuple[int, bytes]]] = {}
        self.written: Counter[int] = Counter()
        for _ in range(rng.randrange(4)):
            self.seal()

    @property
    def placement(self) -> Placement:
        """Who serves what."""
        return Placement(self.layout, self.next, frozenset(self.sealed))

    def seal(self) -> None:
        """Seal one partition: its targets know what it knows of rows in their range, at least."""
        if not self.sealed and self.next.generation > GENERATIONS_MAX:
            return
        partition = self.rng.choice(sorted({*self.layout.ids} - self.sealed))
        self.sealed.add(partition)
        for part in targets_of(partition, self.layout, self.next):
            target = self.known.setdefault(part.new, {})
            for slot, state in self.known.get(partition, {}).items():
                target[slot] = max(target.get(slot, (0, b"")), state)
        if self.sealed == {*self.layout.ids}:
            self.layout, self.sealed = self.next, set()
            self.next = self.layout.next(self.rng.randrange(1, 5))

    def answer(self, request: WriteRequest, body: bytes) -> Any:
        """Answer a write as a leader does (`datanode.writing.producing`)."""
        segments = self.placement.segments()
        inside = [one for one in segments if one.partition == request.partition]
        if not inside:
            return ReshardedError("sealed")
        digest = digest_of(body, delete=request.delete)
        known = self.known.setdefault(request.partition, {})
        names = [(request.partition, request.sequence, digest)]
        names += [(sent.partition, sent.sequence, sent.digest) for sent in request.original_ids]
        for sent_to, sequence, of_rows in names:
            last, last_digest = known.get((request.producer_id, sent_to), (0, b""))
            if last > sequence:
                return ConflictError("behind", sequence=last)
            if last == sequence:
                return request if of_rows == last_digest else SequenceReusedError("others")
        batch = bodies.from_ipc(body, CODEC.arrow_schema)
        for key, found in zip(
            batch["id"].to_pylist(), encoded_rows(CODEC, batch).hashes().tolist(), strict=True
        ):
            assert any(one.start <= found < one.end for one in inside)
            self.written[key] += 1
        known[request.producer_id, request.partition] = (request.sequence, digest)
        return request


class Writer:
    """A client of the model: what it knows of who serves is as old as its last fetch."""

    config = ZoneConfig(zone="z", zone_uid="u", partitions=1, table=TABLE)

    def __init__(self, model: Model, turns: Turns, name: str, faults: float) -> None:
        self._model, self._turns, self._name, self._faults = model, turns, name, faults
        self.placement = model.placement
        self._writes = SequencedWrites(self, self, bytes_max=1 << 20)  # type: ignore[arg-type]

    def serving_layouts(self) -> tuple[Layout, ...]:
        """Fetch who serves; something may be cut over before."""
        self._turn()
        self.placement = placement = self._model.placement
        found = {generation_of(each.partition) for each in placement.segments()}
        layouts = (placement.layout, self._model.next)
        return tuple(each for each in layouts if each.generation in found)

    def write_sequenced(
        self, batch: Any, work: Sequenced, first_row: int, *, delete: bool = False
    ) -> bool:
        """Write a batch."""
        return self._writes.write(CODEC, batch, work, first_row, delete=delete)

    def ask(self, _: PartitionId, message: Any, body: bytes) -> tuple[Any, int]:
        """Send a request: the writer may die before or behind it."""
        self._turn()
        answer = self._model.answer(message(1), body)
        self._turn()
        return answer, 1

    def _turn(self) -> None:
        self._turns.take(self._name)
        if self._model.rng.random() < 0.15:
            self._model.seal()
        if self._model.rng.random() < self._faults:
            raise DiedError


def batches() -> list[Any]:
    """Return batches, each in the order of its hashes."""
    found = []
    for first in range(0, ROWS, ROWS // BATCHES):
        ids = {"id": range(first, first + ROWS // BATCHES)}
        rows = pa.RecordBatch.from_pydict(ids, schema=CODEC.arrow_schema)
        order = pa.compute.array_sort_indices(encoded_rows(CODEC, rows).row_ids())
        found.append(rows.take(order))
    return found


@pytest.fixture(autouse=True)
def _stepwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequenced, "LANES_AT_ONCE", 1)
    monkeypatch.setattr(submitting, "PAUSE_SECONDS", 0)


class Work:
    """Rows that two write at a time; who dies is replaced, until somebody has written all."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.model, self._rng, self._turns = Model(rng), rng, Turns()
        self._slices = rng.choice([self.model.layout, Layout(self.model.layout.generation, 3)])
        self._noted: set[Layout] = set()
        self._begun = self._ended = 0

    def run(self) -> None:
        """Write until the first one has written all, then until the second one has."""
        turns = self._turns
        while not self._ended or turns.waiting:
            if not self._ended and len(turns.waiting) < 2:
                self._begun += 1
                faults = 0.03 if self._begun < 8 else 0.0
                writer = Writer(self.model, turns, f"{self._begun}", faults)
                turns.begin(f"{self._begun}", functools.partial(self._write, writer))
            else:
                turns.give(self._rng.choice(turns.waiting))
            if turns.errors:
                raise turns.errors[0]

    def _write(self, writer: Any) -> None:
        rows = SequencedRows(writer, "p", self._note, slices=self._slices)
        for batch in batches():
            rows.write(batch)
        if not self._ended:
            assert self.model.written == Counter(range(ROWS)), "it is not all there"
        self._ended += 1

    def _note(self, layouts: Iterable[Layout]) -> set[Layout]:
        self._noted.update(layouts)
        return self._noted


@pytest.mark.proves("SP-04", "SP-06")
@pytest.mark.parametrize("seed", range(60))
def test_each_row_is_written_once_whoever_writes_dies_and_is_sealed_meanwhile(seed: int) -> None:
    """Two write the same, die and are replaced, while the zone is re-sharded again and again.

    A row is lost where a number says more than what is there, and doubled without earlier names.
    """
    work = Work(seed)
    work.run()
    assert work.model.written == Counter(range(ROWS))


def test_rows_in_another_order_are_refused() -> None:
    """Numbers count rows in the order of hashes: others would be taken for written."""
    rows = {"id": range(ROWS)}
    batch = pa.RecordBatch.from_pydict(rows, schema=CODEC.arrow_schema)
    writer: Any = Writer(Model(random.Random(1)), Turns(), "", 0)
    work = Sequenced("p", 1, Layout(0, 1), (writer.placement.layout, writer.placement.next_layout))
    with pytest.raises(ValueError, match="order"):
        writer.write_sequenced(batch, work, 0)


def test_a_target_takes_no_rows_of_a_slice_before_all_of_its_sources_have_cut_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that came from the second source would be behind those of the first, and be lost.

    It takes two re-shardings: the slice's first partition was split, and its halves are merged.
    """
    slices, split, merged = Layout(0, 1), Layout(1, 2), Layout(2, 1)
    first, second = split.ids
    placement = Placement(split, merged, frozenset({first}))
    found = intervals_of(slices, (slices, split, merged), placement)
    assert found is not None
    assert [one.partition for one in found] == [None, second]
    whole = intervals_of(slices, (slices, split, merged), Placement(merged))
    assert whole is not None
    assert [(one.before, one.partition) for one in whole] == [
        ((0, first), merged.ids[0]),
        ((0, second), merged.ids[0]),
    ]
    assert intervals_of(slices, (slices, merged), placement) is None, "one is not noted"
    monkeypatch.setattr(submitting, "CUT_OVER_SECONDS", 0)

    class Stuck:
        """A zone whose re-sharding goes no further."""

        def serving_layouts(self) -> tuple[Layout, ...]:
            return split, merged

        def write_sequenced(self, *_: Any, **__: Any) -> bool:
            return False

    rows = SequencedRows(Stuck(), "p", lambda found: found, slices=slices)  # type: ignore[arg-type]
    with pytest.raises(NotReadyError, match="second re-sharding"):
        rows.write(batches()[0])


def test_requests_are_the_same_before_and_in_a_cut_over() -> None:
    """One who knows of the next layout would cut finer at what is not sealed.

    Who does not know of it yet sends more rows at once, and those that are there a second time.
    """
    old, new = Layout(0, 2), Layout(1, 3)
    before = intervals_of(old, (old,), Placement(old))
    within = intervals_of(old, (old, new), Placement(old, new, frozenset({0})))
    assert before is not None
    assert within is not None
    assert [one for one in within if one.slice == 1] == [one for one in before if one.slice == 1]
    assert [one.before for one in within if one.slice == 0] == [(0,), (0,)]
