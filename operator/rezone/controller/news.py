"""What a data node's new report changes: who must look at it, and how soon.

Writes move offsets all the time. Only work that waits for an offset cares, and not at once; what
changes a decision (roles, epochs, proposals, ends of copies, errors) is looked at immediately.
Without this difference every acknowledged write would cost the API server a few reads.
"""

import dataclasses

from rezone.wire.messages import NodeReport, PartitionId, ReplicaReport


@dataclasses.dataclass(frozen=True)
class News:
    """`partitions` whose state has changed, None for possibly all; `progress`: offsets moved."""

    partitions: frozenset[PartitionId] | None
    progress: bool = False

    @property
    def urgent(self) -> bool:
        """Return whether anything but progress has changed."""
        return self.partitions is None or bool(self.partitions)

    def changes(self, partition: PartitionId | None) -> bool:
        """Return whether the state of a partition may have changed; with None, of any."""
        if self.partitions is None or partition is None:
            return self.urgent
        return partition in self.partitions


EVERYTHING = News(None)


def news_of(before: NodeReport, after: NodeReport) -> News | None:
    """Return what is new in a node's report; None when it says the same."""
    if before.process_id != after.process_id or before.zone_uid != after.zone_uid:
        return EVERYTHING
    if before.leaving != after.leaving:
        return EVERYTHING
    if before.replicas == after.replicas:
        return None
    old = {r.partition: r for r in before.replicas}
    new = {r.partition: r for r in after.replicas}
    changed = old.keys() ^ new.keys()
    for partition in old.keys() & new.keys():
        if _state(old[partition]) != _state(new[partition]):
            changed.add(partition)
    return News(frozenset(changed), progress=True)


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
        replica.takeover,
        replica.takeover_epoch,
        replica.takeover_error,
        replica.proposal,
        replica.error,
        None if copy is None else (copy.done, copy.error),
        frozenset(replica.follower_offsets),
    )
