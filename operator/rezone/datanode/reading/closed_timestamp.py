"""Closed timestamps: up to when a replica may be read, though nothing was written for a while.

A follower may be read as of the commit time of what it has applied, because later rows have later
times. While nothing is written that time stands still. So a leader closes times: it promises that
no row will ever get such a time, and says up to which offset all that may have it stands. Where
that offset is committed and applied, reads as of the closed timestamp are right, and stay so.

A closed timestamp binds every later leader, too. So only a time is closed that all who may lead
next have been told of before (`LeaseRequest.time`), those that are about to become members
included: who leads gives its rows later times, after a restart as well (`clock_bound`). CockroachDB
closes timestamps in much the same way, YugabyteDB's safe time is the same idea; here they ride on
the rounds of leases.

Concurrency: guarded by the partition's lock.
"""

from collections.abc import Callable

from rezone.datanode.state.replica_state import ReplicaState
from rezone.wire.messages import ClosedTime, Role

_LOCK_SECONDS = 0.01


class ClosedTimestamp:
    """The closed timestamp of one replica: made by a leader, heard of by a follower."""

    def __init__(self, replica: ReplicaState, look_at_reads: Callable[[], None]) -> None:
        self._replica = replica
        self._look_at_reads = look_at_reads

    def close(self) -> ClosedTime | None:
        """Close the latest time that may be, or say the last one again: who serves is known by it.

        None when none was closed, or the replica does not serve.
        """
        replica, closed = self._replica, self._replica.closed_until
        # The ticking thread asks: who holds the lock for longer may wait for a disk that stalls.
        if not replica.lock.acquire(timeout=_LOCK_SECONDS):
            return None
        try:
            time = replica.promise_latest()
            if time > replica.store.last_commit_time:
                closed.take(replica.store.log_end, time)
                replica.positions.note_applied()
            state = replica.leadership
            if state is None or not state.serving or not closed.time:
                return None
            return ClosedTime(
                replica.partition_id, replica.leader_epoch, closed.end_offset, closed.time
            )
        finally:
            replica.lock.release()

    def heard(self, news: ClosedTime) -> None:
        """Take what this replica's leader has closed; of another leadership it counts nothing."""
        replica = self._replica
        with replica.lock:
            if replica.role is Role.LEADER or news.leader_epoch != replica.leader_epoch:
                return
            replica.closed_until.take(news.end_offset, news.time)
            replica.positions.note_applied()
            self._look_at_reads()  # where nothing is written, nothing else wakes the job
