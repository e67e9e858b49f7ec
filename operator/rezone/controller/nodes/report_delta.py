"""What a data node's new report changes: who must look at it, and how soon.

Writes move offsets all the time. Only work that waits for an offset cares, and not at once; what
changes a decision (roles, epochs, proposals, ends of copies, errors) is looked at immediately.
Without this difference every acknowledged write would cost the API server a few reads.
"""

import dataclasses
import functools

from rezone.wire.layouts import index_of
from rezone.wire.messages import PartitionId, ReplicaReport, ReshardProgress


@dataclasses.dataclass(frozen=True)
class ReportDelta:
    """`partitions` whose state has changed, None for possibly all; `progress`: offsets moved."""

    partitions: frozenset[PartitionId] | None
    progress: bool = False

    @property
    def urgent(self) -> bool:
        """Return whether anything but progress has changed."""
        return self.partitions is None or bool(self.partitions)

    def changes(self, index: int | None) -> bool:
        """Return whether the partition that people call by `index` may have; with None, any.

        Whoever waits for one of the layout to come is woken by the old one's delta, too.
        """
        if self.partitions is None or index is None:
            return self.urgent
        return index in self._indexes

    @functools.cached_property
    def _indexes(self) -> frozenset[int]:
        return frozenset(index_of(partition) for partition in self.partitions or ())


EVERYTHING = ReportDelta(None)


def has_changed(before: ReplicaReport, after: ReplicaReport) -> bool:
    """Return whether more than progress lies between two reports of a replica."""
    return _state(before) != _state(after)


def _state(replica: ReplicaReport) -> tuple[object, ...]:
    """Return the part of a replica's report that decisions hang on, without its offsets."""
    copy = replica.copy
    return (
        replica.role,
        replica.leader,
        replica.leader_epoch,
        replica.partition_epoch,
        replica.revision,
        replica.needs_snapshot,
        replica.pulls_log,
        replica.takeover,
        replica.takeover_epoch,
        replica.takeover_error,
        replica.proposal,
        replica.error,
        replica.failed,
        replica.leader_heard,
        replica.leader_stalled,
        None if copy is None else (copy.done, copy.error),
        frozenset(replica.follower_offsets),
        replica.seal,
        tuple(_reshard_state(each) for each in replica.reshard_progress),
    )


def _reshard_state(progress: ReshardProgress) -> tuple[object, ...]:
    """Return what a re-sharding decides by, without the rows that go by meanwhile."""
    known = progress.lag_rows is not None
    return (progress.source, progress.backfilled, known, progress.broken, progress.sealed)
