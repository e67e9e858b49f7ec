"""What clients of a partition have written, and what they were told of it."""

from __future__ import annotations

import collections
import functools
import random
import uuid
from collections.abc import Callable, Sequence

from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.storage.engines.base import TIME_MAX
from rezone.storage.log.entry import OP_DELETE, OP_UPSERT, rows_batch
from rezone.storage.state.producers import uuid_bytes
from rezone.wire.messages import PartitionId, WriteRequest, WriteResult

ROWS_PER_WRITE = 4
DELETE_CHANCE = 0.2

Values = dict[bytes, bytes | None]
"""Rows with what is written to them; None deletes."""


class Written:
    """The writes of a run, each of a few of the rows and by a writer of its own.

    `value_of` makes values that a table can have.
    """

    def __init__(
        self,
        rows: Sequence[bytes],
        counts: collections.Counter[str],
        value_of: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._rows = rows
        self._counts = counts
        self._value_of = value_of
        self._acknowledged: dict[bytes, tuple[int, bytes | None]] = {}
        self._unanswered: collections.Counter[tuple[bytes, bytes | None]] = collections.Counter()
        self._writers: dict[bytes, int] = {}
        self._number = 0

    def next_write(
        self, rng: random.Random, partition: PartitionId
    ) -> tuple[WriteRequest, PreparedRows, Callable[[object], None]]:
        """Return a write, and whom to tell what came of it."""
        self._number += 1
        value = self._value_of(b"%d " % self._number * 5)
        values: Values = {
            row: None if rng.random() < DELETE_CHANCE else value
            for row in sorted(rng.sample(self._rows, rng.randint(1, ROWS_PER_WRITE)))
        }
        ops = [OP_DELETE if value is None else OP_UPSERT for value in values.values()]
        batch = rows_batch(list(values), ops, [value or b"" for value in values.values()])
        writer = uuid.UUID(int=self._number).hex
        request = WriteRequest(opaque=0, partition=partition, producer_id=writer, sequence=1)
        self._unanswered.update(values.items())
        reply = functools.partial(self._answered, uuid_bytes(writer), values)
        return request, PreparedRows(batch, 100), reply

    def _answered(self, writer: bytes, values: Values, outcome: object) -> None:
        if not isinstance(outcome, WriteResult):
            return
        self._counts["written"] += 1
        self._writers[writer] = outcome.end_offset
        self._unanswered.subtract(values.items())
        for row, value in values.items():
            if outcome.commit_time > self._acknowledged.get(row, (0, None))[0]:
                self._acknowledged[row] = (outcome.commit_time, value)

    def check(self, replica: Replica) -> None:
        """Check that a replica has the rows that were acknowledged, and knows who wrote them."""
        for row, (time, value) in self._acknowledged.items():
            (newest,) = replica.store.engine.newest_times([row])
            (found,) = replica.store.reader.newest([row], TIME_MAX)
            told = f"{row!r} is {found!r}, acknowledged was {value!r}"
            later = newest > time or (newest == 0 and found is None)
            unanswered = later and self._unanswered[row, found] > 0
            collected = newest == 0 and value is None
            assert unanswered or collected or (newest, found) == (time, value), told
        for writer, end in self._writers.items():
            known = replica.store.producer(writer, replica.partition_id)[1]
            assert known is not None, f"writer {writer!r} is forgotten"
            assert known.end_offset == end, f"writer {writer!r}: {known}, it was told {end}"
