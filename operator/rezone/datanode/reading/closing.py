"""Closed times: up to when a replica may be read, though nothing was written for a while.

A follower may be read as of the commit time of what it has applied, because later rows have later
times. While nothing is written that time stands still. So a leader closes times: it promises that
no row will ever get such a time, and says up to which offset all that may have it stands. Where
that offset is committed and applied, reads as of the closed time are right, and stay so.

A closed time binds every later leader, too. So only a time is closed that all who may lead next
have been told of before (`LeaseRequest.time`), those that are about to become members included: who
leads gives its rows later times, after a restart as well (`told`). CockroachDB closes timestamps in
much the same way, YugabyteDB's safe time is the same idea; here they ride on the rounds of leases.

Concurrency: guarded by the partition's lock.
"""

from typing import TYPE_CHECKING

from rezone.wire.messages import ClosedTime, Role

if TYPE_CHECKING:
    from rezone.datanode.commit.protocol import Leadership
    from rezone.datanode.replica.replica import Replica


_LOCK_SECONDS = 0.01


class Closing:
    """The closed time of one replica: made by a leader, heard of by a follower."""

    def __init__(self, replica: "Replica") -> None:
        self._replica = replica
        self._end = 0
        self._time = 0

    def told(self, state: "Leadership") -> float:
        """Return the latest time that all who may lead next know of, also after a restart."""
        return min(state.told_time, self._replica.host.told.until)

    def promise_at(self, time: int, state: "Leadership") -> bool:
        """Promise that no later row gets this time, if that may be; under the lock."""
        replica = self._replica
        return replica.write_clock.promise(time, replica.clock.known(), self.told(state))

    def promise(self) -> int:
        """Promise that no later row gets as late a time as may be promised; return it.

        0 where nothing may be promised: by a follower, or when others are about to write. Under the
        lock.
        """
        replica = self._replica
        state = replica.leading.state
        if state is None or not state.serving or replica.takeover.blocks_writes:
            return 0
        if replica.store.seal is not None:
            return 0  # later times are those of other partitions
        return replica.write_clock.promise_latest(replica.clock.known(), self.told(state))

    def close(self) -> ClosedTime | None:
        """Close the latest time that may be, or say the last one again: who serves is known by it.

        None when none was closed, or the replica does not serve.
        """
        replica = self._replica
        # The ticking thread asks: who holds the lock for longer may wait for a disk that stalls.
        if not replica.lock.acquire(timeout=_LOCK_SECONDS):
            return None
        try:
            time = self.promise()
            if time > replica.store.last_commit_time:
                self._end, self._time = replica.store.log_end, time
                replica.positions.note_applied()
            state = replica.leading.state
            if state is None or not state.serving or not self._time:
                return None
            return ClosedTime(replica.partition_id, replica.leader_epoch, self._end, self._time)
        finally:
            replica.lock.release()

    def heard(self, news: ClosedTime) -> None:
        """Take what this replica's leader has closed; of another leadership it counts nothing."""
        replica = self._replica
        with replica.lock:
            if replica.role is Role.LEADER or news.leader_epoch != replica.leader_epoch:
                return
            self._end, self._time = news.end_offset, news.time
            replica.positions.note_applied()
            replica.reads.look()  # where nothing is written, nothing else wakes the job

    def time_at(self, applied: int) -> int:
        """Return up to when a replica that has applied and committed so much may be read."""
        return self._time if applied >= self._end else 0

    def forget(self) -> None:
        """Take nothing of another leadership for this one's, which may have other rows there."""
        self._end = self._time = 0
