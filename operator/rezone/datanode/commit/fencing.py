"""What a replica refuses because it has seen something newer: coordinators, triggers, records.

The newest seen is on the disk before anything follows from it (ZR-17). The checks are pure: they go
by what the disk knows.

Concurrency: `Fencing` is used under the partition's lock.
"""

from typing import Any

from rezone.storage.state.meta import PartitionMeta
from rezone.storage.store import PartitionStore
from rezone.wire.errors import StaleEpochError, StaleRevisionError
from rezone.wire.messages import Fence


def check_fence(meta: PartitionMeta, fence: Fence) -> dict[str, Any]:
    """Refuse a call of an older coordinator or trigger; return what to persist of the fence."""
    if fence.coordinator_epoch < meta.coordinator_epoch:
        raise StaleEpochError(
            f"coordinator epoch {fence.coordinator_epoch} is behind {meta.coordinator_epoch}",
            coordinator_epoch=meta.coordinator_epoch,
        )
    # Revision 0 is of a call without a trigger, such as an answer to AdjustIsr.
    if fence.revision:
        check_revision(meta, fence.revision)
    return {
        "coordinator_epoch": fence.coordinator_epoch,
        "revision": max(fence.revision, meta.revision),
    }


def check_revision(meta: PartitionMeta, revision: int) -> None:
    """Refuse what an older trigger than the newest one seen asks for (ZR-17)."""
    if revision < meta.revision:
        raise StaleRevisionError(
            f"revision {revision} is behind {meta.revision}", revision=meta.revision
        )


def check_record(meta: PartitionMeta, leader_epoch: int, partition_epoch: int) -> None:
    """Refuse what is of an older record than the newest one known."""
    known = (meta.leader_epoch, meta.partition_epoch)
    if (leader_epoch, partition_epoch) < known:
        raise StaleEpochError(
            f"epochs {leader_epoch}/{partition_epoch} of partition {meta.partition} are "
            f"behind {known[0]}/{known[1]}",
            leader_epoch=known[0],
            partition_epoch=known[1],
            superseded=1,
        )


class Fencing:
    """The fences of one replica, as they stand in its store's meta."""

    def __init__(self, store: PartitionStore) -> None:
        self._store = store

    def check(self, fence: Fence) -> dict[str, Any]:
        """Refuse a call of an older coordinator or trigger; return what to persist of the fence."""
        return check_fence(self._store.meta, fence)

    def check_revision(self, revision: int) -> None:
        """Refuse what an older trigger than the newest one seen asks for (ZR-17)."""
        check_revision(self._store.meta, revision)

    def check_record(self, leader_epoch: int, partition_epoch: int) -> None:
        """Refuse what is of an older record than the newest one known."""
        check_record(self._store.meta, leader_epoch, partition_epoch)

    def persist(self, fence: Fence, *, durable: bool = True) -> None:
        """Check a call's fence and remember it; without `durable` only until a restart."""
        self._store.update_meta(**self.check(fence), durable=durable)
