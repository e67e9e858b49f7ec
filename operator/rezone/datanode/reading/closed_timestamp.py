"""Does what follows for the closed timestamp of a replica (`core.closed_timestamp`).

Concurrency: guarded by the partition's lock.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from rezone.datanode.commit.lease import round_seconds
from rezone.datanode.core.closed_timestamp import (
    Due,
    Event,
    Heard,
    NoteApplied,
    Promise,
    Sees,
    Tell,
)
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.wire.messages import ClosedTime, Role

_LOCK_SECONDS = 0.01


class Leading(Protocol):
    """What is asked of a replica that may lead."""

    @property
    def leads_alone(self) -> bool:
        """Whether it leads, and nobody streams from it."""

    @property
    def closed_timestamp(self) -> "ClosedTimestamp":
        """Its closed timestamp."""


class ClosedAlone:
    """The closed timestamps of leaders that nobody streams from: no round of leases closes them.

    Feeds would stand still until the next write. `lease_ms` 0: leaders close no times.
    """

    def __init__(self, partitions: Callable[[], Iterable[Leading]], lease_ms: int) -> None:
        self._partitions = partitions
        self._pause = round_seconds(lease_ms)
        self._closed_at = float("-inf")

    def tick(self, now: float) -> None:
        """Close times as often as with a round of leases."""
        if now - self._closed_at < self._pause:
            return
        self._closed_at = now
        for partition in self._partitions():
            if partition.leads_alone:
                partition.closed_timestamp.close()


class ClosedTimestamp:
    """The closed timestamp of one replica: made by a leader, heard of by a follower."""

    def __init__(self, replica: ReplicaState, look_at_reads: Callable[[], None]) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._look_at_reads = look_at_reads

    def close(self) -> ClosedTime | None:
        """Close the latest time that may be, or say the last one again: who serves is known by it.

        None when none was closed, or the replica does not serve.
        """
        # The ticking thread asks: who holds the lock for longer may wait for a disk that stalls.
        if not self.runner.begin(_LOCK_SECONDS):
            return None
        try:
            return self._step(Due())
        finally:
            self.runner.end()

    @entry
    def heard(self, news: ClosedTime) -> None:
        """Take what this replica's leader has closed; of another leadership it counts nothing."""
        self._step(Heard(news))

    def _step(self, event: Event) -> ClosedTime | None:
        """Do what follows; return what the followers are to be told."""
        replica = self._replica
        for effect in replica.closed_until.step(event, self._seen()):
            match effect:
                case Promise(time):
                    replica.write_clock.raise_to(time)
                case NoteApplied():
                    replica.positions.note_applied()
                    self._look_at_reads()  # where nothing is written, nothing else wakes the job
                case Tell(news):
                    return news
        return None

    def _seen(self) -> Sees:
        replica, group = self._replica, self._replica.leadership
        return Sees(
            partition=replica.partition_id,
            leader_epoch=replica.leader_epoch,
            leads=replica.role is Role.LEADER,
            serving=group is not None and group.serving,
            log_end=replica.store.log_end,
            last_commit_time=replica.store.last_commit_time,
            promisable=replica.promisable(),
        )
