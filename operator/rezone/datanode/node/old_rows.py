"""The rows before the changes of a partition, for who follows it and asks for them (decision 0504).

They are versions that the engine still has. What covers them is collected by the zone's
`version_retention_seconds`, as for reads of a time (`state.expiry`): so whether they were there is
asked when all of an answer was read.

Concurrency: one object for one answer, in the Flight thread of its call.
"""

from rezone.datanode.replica.replica import Replica
from rezone.datanode.state.expiry import oldest_kept, retention_micros
from rezone.wire.errors import FeedTruncatedError, LimitExceededError
from rezone.wire.messages import AskedRange

OLD_BYTES_MAX = 40 << 20
"""The rows before the changes of one commit have so many bytes at most: they come in one answer."""

_SLICE_KEYS = 64
_BEGINS_LATER_SHARE = 0.1


class RowsBefore:
    """Reads rows as they were before commit times, and knows the earliest of those."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._earliest: int | None = None

    def __call__(self, row_ids: list[bytes], time: int) -> list[bytes | None]:
        """Return the values that rows had before a time; LimitExceededError when they are too much.

        All versions of the rows below that time must be applied.
        """
        if self._earliest is None or time < self._earliest:
            self._earliest = time
        values: list[bytes | None] = []
        size = 0
        for start in range(0, len(row_ids), _SLICE_KEYS):
            found = self._replica.store.reader.newest(
                row_ids[start : start + _SLICE_KEYS], time - 1
            )
            size += sum(len(value) for value in found if value is not None)
            if size > OLD_BYTES_MAX:
                raise LimitExceededError(
                    f"the rows before the commit at {time} have more than {OLD_BYTES_MAX} bytes; "
                    "follow the changes up to that time without old rows",
                    limit=OLD_BYTES_MAX,
                )
            values += found
        return values

    def require_kept(self, asked: AskedRange) -> None:
        """Raise FeedTruncatedError when versions that were asked for may have been collected.

        NotReadyError while the node does not know the time.
        """
        if self._earliest is None:
            return
        self._replica.clock.require()
        oldest = oldest_kept(self._replica)
        if self._earliest - 1 < oldest:
            raise FeedTruncatedError(
                f"rows before changes of partition {asked.partition} since {asked.time} are not "
                f"kept: versions are for {retention_micros(self._replica) // 1_000_000} s; go on "
                "from the same token without old rows, or read the rows as of a time and follow "
                "the changes since then (TableClient.changes_from_snapshot)",
                partition=asked.partition,
                time=asked.time or 0,
                oldest=max(0, oldest),
            )


def earliest_begin(replica: Replica) -> int:
    """Return where to begin with all changes whose rows before are kept.

    Later than the earliest by a share of the retention: that one would be too old when it is read.
    NotReadyError while the node does not know the time.
    """
    replica.clock.require()
    later = int(retention_micros(replica) * _BEGINS_LATER_SHARE)
    return max(0, oldest_kept(replica)) + later
