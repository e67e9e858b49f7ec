"""Batches that are written again over re-shardings, at partitions that know what a leader knows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from rezone.client.operations.producer import OpenedProducer
from rezone.client.operations.sequenced import SentRange, SequencedWrites, sent_ranges
from rezone.wire.codec import bodies
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.producers import digest_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, RowLimits, TableSchema
from rezone.wire.errors import ConflictError, ReshardedError, SequenceReusedError
from rezone.wire.layouts import Layout, Segment, segments, targets_of
from rezone.wire.messages import PartitionId, WriteRequest

TABLE = TableSchema(columns=(Column("id", ColumnType.INT64),), primary_key=("id",))
CODEC = RowCodec(TABLE, RowLimits(batch_rows_max=8))
ROWS = 60


class DiedError(Exception):
    """Whoever wrote is gone."""


class Model:
    """A zone whose partitions remember the last batch by the partition it was sent to.

    `ask` stands for `Requests.ask`: it may seal a partition before a request, and let the writer
    die before or behind it.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.layout, self.next = Layout(0, rng.randrange(1, 5)), Layout(1, rng.randrange(1, 5))
        self.sealed: set[PartitionId] = set()
        self.known: dict[PartitionId, dict[PartitionId, tuple[int, bytes]]] = {}
        self.written: Counter[int] = Counter()
        self.faults = 0.0
        for _ in range(rng.randrange(4)):
            self.seal()

    def segments(self) -> tuple[Segment, ...]:
        """Return who serves what."""
        return segments(self.layout, self.next, self.sealed)

    def seal(self) -> None:
        """Seal one partition: its targets know what it knows of rows in their range, at least."""
        partition = self.rng.choice(sorted({*self.layout.ids} - self.sealed))
        self.sealed.add(partition)
        for part in targets_of(partition, self.layout, self.next):
            target = self.known.setdefault(part.new, {})
            for sent_to, state in self.known.get(partition, {}).items():
                target[sent_to] = max(target.get(sent_to, (0, b"")), state)
        if self.sealed == {*self.layout.ids}:
            self.layout, self.sealed = self.next, set()
            self.next = self.layout.next(self.rng.randrange(1, 5))

    def ask(self, partition: PartitionId, message: Any, body: bytes) -> tuple[Any, int]:
        """Answer a write as a leader does (`datanode.writing.producing`)."""
        if self.rng.random() < self.faults:
            self.seal()
        if self.rng.random() < self.faults / 2:
            raise DiedError
        request = message(1)
        serving = {one.partition for one in self.segments()}
        if partition not in serving:
            return ReshardedError("sealed"), 1
        answer = self._answer(request, body)
        if self.rng.random() < self.faults / 2:
            raise DiedError
        return answer, 1

    def _answer(self, request: WriteRequest, body: bytes) -> Any:
        digest = digest_of(body, delete=request.delete)
        known = self.known.setdefault(request.partition, {})
        names = [(request.partition, request.sequence, digest)]
        names += [(sent.partition, sent.sequence, sent.digest) for sent in request.original_ids]
        for sent_to, sequence, of_rows in names:
            last, last_digest = known.get(sent_to, (0, b""))
            if last > sequence:
                return ConflictError("behind", sequence=last)
            if last == sequence:
                return request if of_rows == last_digest else SequenceReusedError("others")
        batch = bodies.from_ipc(body, CODEC.arrow_schema)
        inside = [one for one in self.segments() if one.partition == request.partition]
        for key, found in zip(
            batch["id"].to_pylist(), encoded_rows(CODEC, batch).hashes().tolist(), strict=True
        ):
            assert any(one.start <= found < one.end for one in inside)
            self.written[key] += 1
        known[request.partition] = (request.sequence, digest)
        return request


class Opened:
    """A producer that is open."""

    def open(self) -> OpenedProducer:
        """Return its id and epoch."""
        return OpenedProducer("p", 1)


@pytest.mark.proves("SP-04")
def test_each_row_is_written_once_wherever_writers_die_and_partitions_are_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row is lost where a later range has a lower sequence, and doubled without its names."""
    monkeypatch.setattr("rezone.client.operations.sequenced.PARTITIONS_AT_ONCE", 1)
    rows = pa.RecordBatch.from_pydict({"id": range(ROWS)}, schema=CODEC.arrow_schema)
    batch = rows.take(pa.compute.array_sort_indices(encoded_rows(CODEC, rows).row_ids()))
    for seed in range(60):
        model = Model(random.Random(seed))
        noted: tuple[SentRange, ...] = ()
        done, attempts = False, 0
        while not done:
            attempts += 1
            model.faults = 0.15 if attempts < 6 else 0.0
            writes: Any = SequencedWrites(Opened(), model, bytes_max=1 << 20)  # type: ignore[arg-type]
            try:
                while not done:
                    noted = sent_ranges(noted, model.segments())
                    done = writes.write(CODEC, batch, noted, delete=False)
            except DiedError:
                continue
        assert model.written == Counter(range(ROWS)), f"seed {seed}"


def test_rows_in_another_order_are_refused() -> None:
    """Sequences count rows in the order of hashes: others would be taken for written."""
    batch = pa.RecordBatch.from_pydict({"id": range(ROWS)}, schema=CODEC.arrow_schema)
    writes = SequencedWrites(Opened(), None, bytes_max=1 << 20)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order"):
        writes.write(CODEC, batch, [SentRange(0, (0,), (0,))], delete=False)
