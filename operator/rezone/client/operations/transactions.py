"""A transaction on one partition, as its user sees it: read, write, delete, then commit or abort.

    with table.transaction({"id": 7}) as tx:
        rows = tx.read([{"id": 7}])
        tx.write([{"id": 7, "balance": 80}])

It reads as of one moment, by key, by an index or all of the partition, with its own writes on top.
Others see all of its writes at once, when it has committed, or none. A row that somebody else has
written since it began, or is about to, it may not write: TransactionConflictError, at once; begin
again. Rows that it has only read others may write, and add rows to what it has looked through: two
transactions that each read what the other one writes may both commit (write skew).

Each request is repeated until it is answered, by whoever leads the partition then, and counts once.
When the partition is re-sharded, transactions that are open end: TransactionEndedError; begin
again. How one has ended the partitions know that took the range over.

Concurrency: any thread may call, one request at a time.
"""

import contextlib
import dataclasses
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from rezone.client.operations.lookups import IndexPage, Lookup
from rezone.client.requests import batches
from rezone.client.requests.asking import Requests
from rezone.client.requests.request import Answer, Outcome
from rezone.client.requests.streams import Own, Streams
from rezone.client.routing.placement import Placement
from rezone.client.settings import ClientSettings
from rezone.wire.codec import bodies
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    ReshardedError,
    RezoneError,
    TransactionEndedError,
)
from rezone.wire.layouts import HashRange, Segment
from rezone.wire.messages import (
    IndexTicket,
    Message,
    OwnWrites,
    PartitionId,
    ReadRequest,
    TransactionBegin,
    TransactionBegun,
    TransactionOutcome,
    TransactionTimes,
    WriteRequest,
)

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransactionCommit:
    """A committed transaction: its rows are on every in-sync replica's disk, and visible.

    `commit_time` (microseconds since 1970) is that of all of its rows; the rest as PartitionWrite.
    """

    partition: PartitionId
    transaction: str
    end_offset: int
    commit_time: int
    leader_epoch: int


class Transaction:
    """One transaction; made by `TableClient.transaction`, ended by `commit`, `abort` or `with`.

    Leaving the `with` block commits, an exception in it aborts. `id` and `partition` name it, for
    `TableClient.transaction_outcome`; `read_time` (microseconds since 1970) is as of when it reads.
    """

    def __init__(
        self,
        requests: Requests,
        streams: Streams,
        codec: RowCodec,
        partition: PartitionId,
        placement: Placement,
        *,
        settings: ClientSettings,
    ) -> None:
        self.id = str(uuid.uuid4())
        self.partition = partition
        self._requests = requests
        self._streams = streams
        self._codec = codec
        self._placement = placement
        self._settings = settings
        self._lock = threading.Lock()
        self._writes = 0
        self._failure: RezoneError | None = None
        self._over = False
        self._times = self._begin()

    @property
    def read_time(self) -> int:
        """As of when it reads, in microseconds since 1970."""
        return self._times.read_time

    def read(self, keys: batches.Rows) -> Any:
        """Return the rows of these primary keys as a table, own writes seen, absent ones left out.

        InvalidRowError for a key of another partition; TransactionEndedError when it is over.
        """
        codec = self._codec
        batch = self._mine(batches.conform(keys, codec.key_schema))
        with self._lock:
            parts = [self._read(part) for part in self._cut(batch, delete=True)]
        return pa.Table.from_batches(parts, schema=codec.arrow_schema)

    def scan(self) -> Any:
        """Return all rows of the partition as a table, in no order, own writes seen.

        Rows that others add later are not seen, and may be added all the same: what it reads by a
        scan or a lookup it must write itself to keep others from it. TransactionEndedError when it
        is over.
        """
        with self._lock, _over_at_seals():
            own = self._own()
            found = [
                batch
                for hashes in self._ranges()
                for batch in self._streams.scan(self._codec, hashes, own=own)
            ]
        return pa.Table.from_batches(found, schema=self._codec.arrow_schema)

    def lookup(
        self,
        index: str,
        low: Sequence[Any] = (),
        high: Sequence[Any] = (),
        *,
        limit: int = 1000,
        after: bytes = b"",
    ) -> IndexPage:
        """Return rows of the partition by an index, own writes seen; see `TableClient.lookup`.

        As for `scan`, others may write rows that it would find. UnknownIndexError for an index that
        has come or gone since the transaction began.
        """
        asked = Lookup(self._codec, index, low=low, high=high, limit=limit, after=after)
        with self._lock, _over_at_seals():
            own = self._own()

            def ticket(segment: Segment, as_of: int | None) -> IndexTicket:
                return asked.ticket(segment, as_of, own.writes)

            with self._streams.trace("lookup") as trace:
                found = [
                    batch
                    for hashes in self._ranges()
                    for batch in self._streams.lookup(
                        hashes, ticket, trace=trace, only=self.partition
                    )
                ]
        return asked.page(found)

    def write(self, data: batches.Rows, *, unchanged_since: int | None = None) -> None:
        """Upsert rows; nobody else sees them before the commit.

        `unchanged_since` (microseconds since 1970, not later than it reads) refuses rows that were
        written after that time, too: by TransactionConflictError, whose detail `version` says when.
        InvalidRowError before anything is sent, also for a row of another partition. Any other
        error leaves only to abort: TransactionConflictError and TransactionEndedError say to begin
        again, LimitExceededError that it writes too much.
        """
        batch = batches.conform(data, self._codec.arrow_schema)
        self._change(batch, delete=False, since=unchanged_since)

    def delete(self, keys: batches.Rows, *, unchanged_since: int | None = None) -> None:
        """Delete rows by primary key, otherwise as `write`. Absent keys are no error."""
        batch = batches.conform(keys, self._codec.key_schema)
        self._change(batch, delete=True, since=unchanged_since)

    def commit(self) -> TransactionCommit | None:
        """Make all of it visible at once; None when it has written nothing.

        TransactionEndedError when it was aborted, because it was too old; nothing was applied.
        TransactionOutcomeUnknownError when no answer came in time: ask `outcome`.
        """
        with self._lock:
            self._require_open()
            self._over = True
            if not self._writes:
                return None
            result = self._requests.end(self.partition, self.id, commit_after=self._writes)
        if result.outcome is not TransactionOutcome.COMMITTED:
            raise TransactionEndedError(
                f"the transaction was not committed: {result.outcome.value.lower()}",
                outcome=result.outcome.value,
            )
        return TransactionCommit(
            partition=self.partition,
            transaction=self.id,
            end_offset=result.end_offset,
            commit_time=result.commit_time,
            leader_epoch=result.leader_epoch,
        )

    def abort(self) -> None:
        """Give it up and free its rows; nothing when it is over."""
        with self._lock:
            if not self._over:
                self._over = True
                self._give_up()

    def outcome(self) -> TransactionOutcome:
        """Return how it has ended; one that is still open is aborted, so the answer is final."""
        with self._lock:
            self._over = True
            return self._requests.end(self.partition, self.id).outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over:
            return
        if kind is None:
            self.commit()
            return
        try:
            self.abort()
        except RezoneError:
            # The reason to abort is what the user must see; the leader ends it by its age.
            _log.warning("a transaction could not be aborted; it will be when it is too old")

    # --- requests -----------------------------------------------------------------------------

    def _begin(self) -> TransactionTimes:
        partition = self.partition
        answer, _ = self._requests.ask(
            partition, lambda opaque: TransactionBegin(opaque=opaque, partition=partition)
        )
        begun = _frame(answer)[0]
        assert isinstance(begun, TransactionBegun)  # noqa: S101 - the node answers in kind
        return TransactionTimes(begun.read_time, begun.begun)

    def _change(self, batch: Any, *, delete: bool, since: int | None) -> None:
        times = self._times
        if since is not None:
            times = TransactionTimes(min(since, times.read_time), times.begun)
        with self._lock:
            self._require_open()
            for part in self._cut(self._mine(batch), delete=delete):
                try:
                    self._write(part, times, delete=delete)
                except RezoneError as error:
                    self._failure = error
                    raise

    def _write(self, part: Any, times: TransactionTimes, *, delete: bool) -> None:
        sequence = self._writes + 1
        # Counted before it is answered: it may have been applied.
        self._writes = sequence

        def message(opaque: int) -> Message:
            return WriteRequest(
                opaque=opaque,
                partition=self.partition,
                producer_id=self.id,
                sequence=sequence,
                delete=delete,
                transaction=times,
            )

        answer, _ = self._requests.ask(self.partition, message, bodies.to_ipc(part))
        _frame_of_open(answer)

    def _read(self, part: Any) -> Any:
        own = self._own()

        def message(opaque: int) -> Message:
            return ReadRequest(opaque=opaque, partition=self.partition, own=own.writes)

        answer, _ = self._requests.ask(self.partition, message, bodies.to_ipc(part))
        return bodies.from_ipc(_frame_of_open(answer)[1], self._codec.arrow_schema)

    def _own(self) -> Own:
        self._require_open()
        return Own(self.partition, OwnWrites(self.id, self._times, self._writes))

    def _ranges(self) -> list[HashRange]:
        """Return what the partition served when the transaction began."""
        whole = self._placement.range_of(self.partition)
        segments = self._placement.segments(whole)
        return [one.hashes for one in segments if one.partition == self.partition]

    def _give_up(self) -> None:
        if self._writes:
            self._requests.end(self.partition, self.id)

    # --- rows ---------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._over:
            raise ConflictError("the transaction was committed or aborted here")
        if self._failure is not None:
            raise ConflictError(
                f"a write of the transaction has failed, it can only be aborted: {self._failure}"
            ) from self._failure

    def _mine(self, batch: Any) -> Any:
        """Return the batch; InvalidRowError when a row belongs to another partition."""
        if batch.num_rows:
            hashes = encoded_rows(self._codec, batch).hashes()
            where = self._placement.partitions_of(hashes)
            others = np.flatnonzero(where != self.partition)
            if others.size:
                row = int(others[0])
                raise InvalidRowError(
                    f"row {row} belongs to partition {int(where[row])}, the transaction to "
                    f"{self.partition}: a transaction is of one partition",
                    row=row,
                    partition=int(where[row]),
                )
        return batch

    def _cut(self, batch: Any, *, delete: bool) -> list[Any]:
        """Return the batch in parts within the limits of one request, each checked."""
        cut = batches.checked_parts(
            self._codec,
            batch,
            self._placement.partitions_of,
            delete=delete,
            bytes_max=self._settings.request_bytes_max,
        )
        return [part.rows for part in cut]


def _frame(answer: Outcome) -> Answer:
    if isinstance(answer, RezoneError):
        raise answer
    return answer


def _frame_of_open(answer: Outcome) -> Answer:
    """As `_frame`, for a transaction that has begun."""
    with _over_at_seals():
        return _frame(answer)


@contextlib.contextmanager
def _over_at_seals() -> Iterator[None]:
    """Say that a transaction is over where its partition was sealed."""
    try:
        yield
    except ReshardedError as error:
        raise TransactionEndedError(
            "the partition was re-sharded: begin again", outcome=TransactionOutcome.ABORTED.value
        ) from error
