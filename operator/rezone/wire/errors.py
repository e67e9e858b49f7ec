"""Errors that cross the wire, each with a stable code.

RezoneError
  NotLeaderError            ask the node named in it (RM-10)
  StaleEpochError           the caller's coordinator or leader epoch is behind (fencing)
  StaleRevisionError        the trigger's revision is behind (ZR-17)
  UnknownPartitionError     no such replica on this node
  ReshardedError            the partition's range is served by those of the next layout
  UnknownIndexError         the zone has no index of that name, or another one under it
  IndexNotBuiltError        the index is new and does not have all rows yet
  NotReadyError             the replica is there but cannot serve yet; ask again
  InvalidRowError           the batch breaks the schema or a limit; nothing of it was applied
  OverloadedError           a queue is full; ask again after a pause
  NoSpaceError              the node's disk is below its reserve; others will lead
  NotEnoughReplicasError    fewer in-sync replicas than minInSyncReplicas
  LimitExceededError        a connection, stream or size limit (DCP-13)
  SnapshotExpiredError      the snapshot is gone; open a new one
  FeedTruncatedError        the log does not reach back to a change feed's position
  VersionsExpiredError      versions of the time asked for are not kept any more
  NotAdmittedError          the operator does not let the copy begin yet; ask again
  ConflictError             the request does not fit the state of the partition
  ProducerFencedError       another one has opened the producer's name since
  SequenceReusedError       other rows under the number of a batch that was written
  RowLockedError            an open transaction has written the row; ask again
  TransactionConflictError  another one has written the row; begin a new transaction
  TransactionEndedError     the transaction is over: aborted, committed or forgotten
  CorruptionError           a checksum does not match; never served
  ForbiddenError            the caller's certificate is not good for this (B-12)
"""

from typing import ClassVar, Final

import msgspec

from rezone.wire.ranges import Integer

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of bytes that are not what they should be."""


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it travels: a code of this module, a text, and details by name."""

    code: str
    message: str
    details: dict[str, str | Integer] = {}


class RezoneError(Exception):
    """The root of all errors that cross the wire.

    `details` are small facts by name, such as the leader's id; `retryable` says whether the same
    request may succeed later without a change of its own.
    """

    code: ClassVar[str] = "Internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, /, **details: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def info(self) -> ErrorInfo:
        """Return the form that travels."""
        return ErrorInfo(code=self.code, message=self.message, details=self.details)


class NotLeaderError(RezoneError):
    """Raised when a replica does not lead; details `leader`, `address`, `epoch`."""

    code = "NotLeader"
    retryable = True


class StaleEpochError(RezoneError):
    """Raised when a control call or stream carries a lower epoch than the replica has persisted.

    Detail `superseded`: 1 when it carries an older record of a partition than the one known here,
    which will never be taken, nor is it needed.
    """

    code = "StaleEpoch"


class StaleRevisionError(RezoneError):
    """Raised when a request's trigger revision is lower than the last one seen (ZR-17)."""

    code = "StaleRevision"


class UnknownPartitionError(RezoneError):
    """Raised when the node holds no replica of the partition."""

    code = "UnknownPartition"
    retryable = True


class ReshardedError(RezoneError):
    """Raised when a partition is sealed, or of a layout that is over (docs/decisions/0120).

    Details: `partition`; of the zone's layouts, as the node knows them, `generation`, `partitions`,
    `next_partitions` and `next_generation`, with the meaning they have in `ZoneConfig`. Partitions
    of the layout after its own serve its range, and know what was applied of the request by an
    earlier try.
    """

    code = "Resharded"
    retryable = True


class UnknownIndexError(RezoneError):
    """Raised when the zone has no index of the name asked for, or another; detail `index`."""

    code = "UnknownIndex"


class IndexNotBuiltError(RezoneError):
    """Raised when an index was added and is still being built; details `index` and `percent`.

    Not to be retried at once: it takes as long as reading all rows of the partition.
    """

    code = "IndexNotBuilt"


class NotAdmittedError(RezoneError):
    """Raised when a copy may not begin yet: limits of the zone, a pause, or no operator."""

    code = "NotAdmitted"
    retryable = True


class NotReadyError(RezoneError):
    """Raised when a replica cannot serve yet."""

    code = "NotReady"
    retryable = True


class InvalidRowError(RezoneError):
    """Raised when a batch breaks the schema or a limit; nothing of it was applied."""

    code = "InvalidRow"


class InvalidFilterError(RezoneError):
    """Raised when a filter of rows breaks a limit or does not fit the table; detail `column`."""

    code = "InvalidFilter"


class OverloadedError(RezoneError):
    """Raised when a bounded queue is full."""

    code = "Overloaded"
    retryable = True


class NoSpaceError(RezoneError):
    """Raised when a node takes no more rows because its disk is nearly full (NW-04)."""

    code = "NoSpace"
    retryable = True


class NotEnoughReplicasError(RezoneError):
    """Raised when the in-sync set is smaller than minInSyncReplicas."""

    code = "NotEnoughReplicas"
    retryable = True


class LimitExceededError(RezoneError):
    """Raised when a limit on connections, streams or sizes is reached (DCP-13)."""

    code = "LimitExceeded"


class SnapshotExpiredError(RezoneError):
    """Raised when a snapshot is asked to go on that its source has closed."""

    code = "SnapshotExpired"


class FeedTruncatedError(RezoneError):
    """Raised when changes behind a feed's position are not in any log any more.

    The way on is a snapshot and the changes behind it (`TableClient.changes_from_snapshot`).
    Details `partition`, `time`, the position, and `oldest`, the earliest position from which this
    replica's log goes on; in microseconds.
    """

    code = "FeedTruncated"


class VersionsExpiredError(RezoneError):
    """Raised when rows are asked for as of a time that is longer ago than versions are kept.

    Details `as_of` and `oldest`, the earliest time that was certain to be kept; in microseconds.
    """

    code = "VersionsExpired"


class ConflictError(RezoneError):
    """Raised when a request does not fit the state of the partition."""

    code = "Conflict"


class ProducerFencedError(RezoneError):
    """Raised when a producer's epoch is below one that is known: another one has opened its name.

    Nothing of the request was applied. Detail `producer_epoch`: the one known.
    """

    code = "ProducerFenced"


class SequenceReusedError(RezoneError):
    """Raised when a batch has the number of one that was written, and other rows.

    Two producers have one id and epoch, as after a copy of a running machine. Nothing of the
    request was applied. Detail `sequence`.
    """

    code = "SequenceReused"


class RowLockedError(RezoneError):
    """Raised when a plain write meets a row of an open transaction; nothing of it was applied."""

    code = "RowLocked"
    retryable = True


class TransactionConflictError(RezoneError):
    """Raised when a transaction writes a row that another writer has, since it began or in its own.

    The same request will not succeed, but the same transaction may, begun again.
    """

    code = "TransactionConflict"


class TransactionEndedError(RezoneError):
    """Raised when a transaction that is over reads or writes; detail `outcome`."""

    code = "TransactionEnded"


class CorruptionError(RezoneError):
    """Raised when stored or received bytes do not match their checksum."""

    code = "Corruption"


class ForbiddenError(RezoneError):
    """Raised when the caller's certificate is not good for what it asks; nothing was applied."""

    code = "Forbidden"


_BY_CODE: dict[str, type[RezoneError]] = {
    kind.code: kind
    for kind in (
        NotLeaderError,
        StaleEpochError,
        StaleRevisionError,
        UnknownPartitionError,
        ReshardedError,
        UnknownIndexError,
        IndexNotBuiltError,
        NotReadyError,
        InvalidRowError,
        OverloadedError,
        NoSpaceError,
        NotEnoughReplicasError,
        LimitExceededError,
        SnapshotExpiredError,
        FeedTruncatedError,
        VersionsExpiredError,
        ConflictError,
        ProducerFencedError,
        SequenceReusedError,
        RowLockedError,
        TransactionConflictError,
        TransactionEndedError,
        CorruptionError,
        ForbiddenError,
    )
}


def error_from(info: ErrorInfo) -> RezoneError:
    """Return the exception for a travelled error; an unknown code becomes the root class."""
    return _BY_CODE.get(info.code, RezoneError)(info.message, **info.details)
