"""What followers of a zone's changes ask data nodes for, and get (decision 0345)."""

import msgspec

from rezone.wire.errors import ErrorInfo
from rezone.wire.messages.base import Message, PartitionId, TraceContext
from rezone.wire.ranges import Count, CountOrNone, Unsigned

NOBODY_GAVE = -1
"""In place of the partition that gave a position: a caller chose the time by itself."""


class AskedRange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A range of hashes whose changes later than a time are asked of a partition.

    `first_hash` and `last_hash` are both included. All changes of the range up to `time` have come;
    without one they begin now, or with the first one that is kept here (`earliest`). `given_by` is
    the partition that said so: this one, or one of a layout before it. Below `offset` this
    partition's log has nothing more for the range.
    """

    partition: PartitionId
    first_hash: Unsigned
    last_hash: Unsigned
    time: Count | None = None
    earliest: bool = False
    given_by: CountOrNone = NOBODY_GAVE
    offset: Count | None = None


class FollowChanges(Message, frozen=True):
    """Ask a node for the next changes of ranges; answered when there are some, or in time.

    Any replica answers with what it knows to be committed, about `bytes_max` for all ranges.
    `old_rows`: with the row before each change. `counts_only`: how many changes each commit has
    come in their place (`RangeChanges.commits`), without old rows, after about as many bytes of the
    log. Data nodes of versions without it answer with the changes.
    """

    ranges: tuple[AskedRange, ...]
    bytes_max: Count = 1 << 20
    timeout_ms: Count = 0
    old_rows: bool = False
    counts_only: bool = False
    trace: TraceContext | None = None


class AcknowledgedPartition(msgspec.Struct, frozen=True, array_like=True):
    """Of a partition a feed needs no changes any more whose commit times are not later."""

    partition: PartitionId
    time: Count


class AcknowledgeChanges(Message, frozen=True):
    """Tell a node up to when a named feed has stored all changes; others' partitions are left."""

    feed: str
    partitions: tuple[AcknowledgedPartition, ...]


class CommitCount(msgspec.Struct, frozen=True, array_like=True):
    """So many changes of a range have this commit time."""

    time: Count
    changes: Count


class RangeChanges(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The next changes of one range, in the order of the request.

    `rows` is one Arrow IPC record batch message (`wire.codec.changes`), empty without changes, of
    the schema that fits what was asked; `commits` has their numbers where those alone were. All
    changes of the range up to `time` have come by then, whoever is asked for more. `own`: those
    that follow are this partition's own, and none that it pulls. `ended`: the partition is
    sealed, and those that follow are of the next layout. `more`: the answer had an end before the
    log; it is asked again with `offset`.
    """

    rows: bytes = b""
    commits: tuple[CommitCount, ...] = ()
    time: Count = 0
    offset: Count | None = None
    own: bool = False
    ended: bool = False
    more: bool = False
    error: ErrorInfo | None = None


class ChangesFound(Message, frozen=True):
    """One answer for each range that was asked for."""

    ranges: tuple[RangeChanges, ...]
