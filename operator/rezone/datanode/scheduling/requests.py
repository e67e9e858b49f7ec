"""Rate, errors and duration of what clients ask a data node for (OB-01).

A request has an operation and a result. Both sets are closed, so the number of series does not
grow with use. Durations are those of the requests with a result of `ok`: a refusal takes next to
no time, and would make a node that refuses everything look fast.

Concurrency: `note` and `counts` are called under the lock of `Foreground`, which every request
takes at its end in any case. The counters need no lock of their own.
"""

import bisect
import enum
from typing import Final, NamedTuple

from rezone.wire.messages import (
    Failure,
    IndexTicket,
    Message,
    ProducerOpen,
    ReadRequest,
    RoutesRequest,
    ScanTicket,
    SelectTicket,
    TransactionBegin,
    TransactionEnd,
    TransactionOutcome,
    TransactionResult,
    WriteRequest,
)

BOUNDS_SECONDS: Final = (
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


class Operation(enum.StrEnum):
    """What a client asks for."""

    WRITE = "write"
    TRANSACTION_WRITE = "transaction_write"
    READ = "read"  # by key, the newest state
    SNAPSHOT_READ = "snapshot_read"  # by key, as of a time, of a bounded age, or in a transaction
    SCAN = "scan"
    LOOKUP = "lookup"
    TRANSACTION_BEGIN = "transaction_begin"
    TRANSACTION_COMMIT = "transaction_commit"
    TRANSACTION_ABORT = "transaction_abort"
    PRODUCER_OPEN = "producer_open"
    ROUTES = "routes"  # who leads which partition


class Result(enum.StrEnum):
    """How a request ended."""

    OK = "ok"
    REDIRECTED = "redirected"  # another replica serves this: the client asks there
    REFUSED = "refused"  # the request is wrong, or the caller may not make it
    CONFLICT = "conflict"  # another client has written the row or ended the transaction
    OVERLOADED = "overloaded"  # a limit of this node or partition is reached
    UNAVAILABLE = "unavailable"  # the partition cannot serve now
    FAILED = "failed"  # a fault of the node
    CANCELLED = "cancelled"  # the client ended the stream before its last row


_RESULT_OF_CODE: Final = {
    "NotLeader": Result.REDIRECTED,
    "UnknownPartition": Result.REDIRECTED,
    "Resharded": Result.REDIRECTED,
    "StaleEpoch": Result.REDIRECTED,
    "StaleRevision": Result.REFUSED,
    "UnknownIndex": Result.REFUSED,
    "InvalidRow": Result.REFUSED,
    "InvalidFilter": Result.REFUSED,
    "SnapshotExpired": Result.REFUSED,
    "VersionsExpired": Result.REFUSED,
    "FeedTruncated": Result.REFUSED,
    "Forbidden": Result.REFUSED,
    "SequenceReused": Result.REFUSED,
    "Conflict": Result.CONFLICT,
    "ProducerFenced": Result.CONFLICT,
    "RowLocked": Result.CONFLICT,
    "TransactionConflict": Result.CONFLICT,
    "TransactionEnded": Result.CONFLICT,
    "Overloaded": Result.OVERLOADED,
    "LimitExceeded": Result.OVERLOADED,
    "NotReady": Result.UNAVAILABLE,
    "NoSpace": Result.UNAVAILABLE,
    "NotEnoughReplicas": Result.UNAVAILABLE,
    "IndexNotBuilt": Result.UNAVAILABLE,
    "NotAdmitted": Result.UNAVAILABLE,
}

_SIMPLE: Final = {
    ScanTicket: Operation.SCAN,
    SelectTicket: Operation.SCAN,
    IndexTicket: Operation.LOOKUP,
    TransactionBegin: Operation.TRANSACTION_BEGIN,
    ProducerOpen: Operation.PRODUCER_OPEN,
    RoutesRequest: Operation.ROUTES,
}


class Request(NamedTuple):
    """A request under way: what it asks for, when it came (monotonic), and what it holds."""

    operation: Operation | None
    begun: float
    held_bytes: int = 0


def operation_of(message: Message) -> Operation | None:
    """Return what a message asks for; None for one that no client sends."""
    if isinstance(message, WriteRequest):
        return Operation.WRITE if message.transaction is None else Operation.TRANSACTION_WRITE
    if isinstance(message, ReadRequest):
        newest = message.as_of is None and message.own is None and message.max_age_ms is None
        return Operation.READ if newest else Operation.SNAPSHOT_READ
    if isinstance(message, TransactionEnd):
        return Operation.TRANSACTION_COMMIT if message.commit else Operation.TRANSACTION_ABORT
    return _SIMPLE.get(type(message))


def result_of_code(code: str) -> Result:
    """Return the result of a request that was answered with an error of this code."""
    return _RESULT_OF_CODE.get(code, Result.FAILED)


def result_of(operation: Operation | None, answer: Message) -> Result:
    """Return the result of a request by its answer."""
    if isinstance(answer, Failure):
        return result_of_code(answer.error.code)
    if operation is Operation.TRANSACTION_COMMIT and isinstance(answer, TransactionResult):
        committed = answer.outcome is TransactionOutcome.COMMITTED
        return Result.OK if committed else Result.CONFLICT
    return Result.OK


class Counts(NamedTuple):
    """The requests of one operation so far: by result; the `ok` ones by bucket and in seconds."""

    results: dict[Result, int]
    buckets: list[int]
    seconds: float


class _Tally:
    """The counters of one operation."""

    __slots__ = ("buckets", "results", "seconds")

    def __init__(self) -> None:
        self.results = dict.fromkeys(Result, 0)
        self.buckets = [0] * (len(BOUNDS_SECONDS) + 1)
        self.seconds = 0.0

    def note(self, result: Result, seconds: float) -> None:
        """Count a request."""
        self.results[result] += 1
        if result is Result.OK:
            self.buckets[bisect.bisect_left(BOUNDS_SECONDS, seconds)] += 1
            self.seconds += seconds

    def cancelled(self) -> None:
        """Count a stream that its client has ended."""
        self.results[Result.CANCELLED] += 1


class RequestCounters:
    """The counters of a node's requests."""

    def __init__(self) -> None:
        self._tallies = {operation: _Tally() for operation in Operation}

    def note(self, operation: Operation, result: Result, seconds: float) -> None:
        """Count a request that has ended; `seconds` from when it came."""
        self._tallies[operation].note(result, seconds)

    def cancelled(self, operation: Operation | None) -> None:
        """Count a stream that its client has ended; may lose one of two that end at once."""
        if operation is not None:
            self._tallies[operation].cancelled()

    def counts(self) -> dict[Operation, Counts]:
        """Return the numbers of this moment."""
        return {
            operation: Counts(dict(tally.results), list(tally.buckets), tally.seconds)
            for operation, tally in self._tallies.items()
        }
