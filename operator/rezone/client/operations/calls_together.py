"""Calls of few rows that one thread makes together: encoded in one go, sent when all have come."""

import enum
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from rezone.client.operations.producer import Producer
from rezone.client.operations.reads import Reads
from rezone.client.operations.writes import Writes
from rezone.client.operations.zone import Zone
from rezone.client.requests.batches import Rows
from rezone.client.requests.calls import Budget, Ended
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.together import is_few


class Kind(enum.Enum):
    """What a call does with its rows, which are primary keys but for writes."""

    WRITE = enum.auto()
    DELETE = enum.auto()
    READ = enum.auto()


class OneCall(NamedTuple):
    """A call of few rows, and who is told how it ends, by any thread."""

    kind: Kind
    rows: Rows
    ended: Ended


class CallsTogether:
    """Makes calls together; see `TableClient.together`."""

    def __init__(
        self,
        zone: Zone,
        *,
        producer: Producer,
        writes: Writes,
        reads: Reads,
        budget: Budget,
        gathering: Gathering,
    ) -> None:
        self._zone = zone
        self._producer = producer
        self._writes = writes
        self._reads = reads
        self._budget = budget
        self._gathering = gathering

    @property
    def knows_zone(self) -> bool:
        """Whether the codec is known, so that asking for it waits for nothing."""
        return self._zone.is_known

    def is_prompt(self, calls: Sequence[OneCall]) -> bool:
        """Whether `submit` would wait for nothing now, not for an answer, room or many rows."""
        writes = any(call.kind is not Kind.READ for call in calls)
        return (
            self._zone.is_known
            and (self._producer.is_open or not writes)
            and all(is_few(call.rows) for call in calls)
            and self._budget.is_roomy(sum(len(call.rows) for call in calls))
        )

    def submit(self, calls: Sequence[OneCall]) -> None:
        """Begin calls in their order; each is told of its own end, and nothing is raised.

        A read ends with what makes its rows, as the future of a `SubmittedRead` does.
        """
        with self._gathering.calls():
            for kind, same in itertools.groupby(calls, key=lambda call: call.kind):
                few = [(call.rows, call.ended) for call in same]
                try:
                    self._begin(kind, few)
                except Exception as error:  # noqa: BLE001 - whoever waits for a call is told
                    for _, ended in few:
                        ended(error)

    def _begin(self, kind: Kind, few: Sequence[tuple[Rows, Ended]]) -> None:
        codec = self._zone.codec
        if kind is Kind.READ:
            self._reads.submit_together(codec, few)
        else:
            self._writes.submit_together(codec, few, delete=kind is Kind.DELETE)
