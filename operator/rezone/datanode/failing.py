"""What a replica does that cannot go on: a disk that is full or fails, or a fault of its own.

It stops at once. A leader leads no more and ends its streams, a follower ends its own, so that no
write waits for it; the report says that it has failed, and the coordinator takes another leader
from the in-sync set. Everything in its memory counts for nothing from then on: after a failed sync
the kernel may have dropped what it could not write, and calls it clean. So the node opens the
replica anew, again and again with growing pauses, from what its disk has; the log is cut where it
was last known to be durable.

Concurrency: `failed` is called under any of the partition's locks; `leave` without any. `Reopening`
is ticked by the node's thread, and works as a job.
"""

import contextlib
import errno
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from rezone.datanode.checked_clock import CheckedClock
from rezone.datanode.settings import NodeSettings
from rezone.datanode.workers import Job
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import DiskTrouble, PartitionId

if TYPE_CHECKING:
    from rezone.datanode.partition import Partition
    from rezone.datanode.replicas import Replicas

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_SPACE_TEXT = "no space left"
"""How RocksDB says it: its errors have no number."""


def trouble_of(error: Exception) -> DiskTrouble:
    """Return what an error says of the disk; nothing when it is not of one."""
    if not isinstance(error, OSError):
        return DiskTrouble.NONE
    if isinstance(error, TimeoutError):
        return DiskTrouble.SLOW
    if error.errno in _NO_SPACE or _NO_SPACE_TEXT in str(error).lower():
        return DiskTrouble.FULL
    return DiskTrouble.FAILED


class Failing:
    """The failure of one replica: why, what of the disk, and what follows from it."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self._left = False
        self.why = ""
        self.disk = DiskTrouble.NONE

    def failed(self, error: Exception) -> None:
        """Go on with nothing: lead no more, answer what waits, and say so."""
        partition = self._partition
        with partition.lock:
            if self.why:
                return
            partition.log.error("a replica has failed", error=str(error))
            self.why = str(error) or type(error).__name__
            self.disk = trouble_of(error)
            self._step_down()
            refused = NotReadyError(f"the replica has failed: {self.why}")
            partition.intake.fail_all(refused)
            partition.pacer.fail_all(refused)
        partition.touched(at_once=True)
        partition.host.replica_failed(partition)
        partition.wake()

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Fail where the disk does; NotReadyError for whoever has asked, who asks again."""
        try:
            yield
        except OSError as error:
            self.failed(error)
            raise NotReadyError(f"the replica has failed: {error}") from error

    def stand_aside(self, stalled_seconds: float) -> None:
        """Fail a leader of which a follower can take the place: the disk does not answer."""
        partition = self._partition
        with partition.lock:
            if partition.leading.can_be_replaced and not partition.takeover.blocks_writes:
                why = f"the disk stalls: a sync is under way for {stalled_seconds:.1f} s"
                self.failed(TimeoutError(why))

    def _step_down(self) -> None:
        """Lead no more; one that is about to hand over has nothing to write, and ends that."""
        partition = self._partition
        if partition.leading.state is None or partition.takeover.blocks_writes:
            return
        partition.leading.stand_down("the replica has failed")
        partition.roles.stand_down()
        partition.importers.ring(urgent=True)
        partition.takeover.clear()

    def leave(self) -> None:
        """End the stream from the leader, once: its writes shall not wait for this replica."""
        if not self._left:
            self._left = True
            self._partition.host.restream(self._partition)


class ReopeningHost(Protocol):
    """What is needed of the node."""

    settings: NodeSettings
    clock: CheckedClock
    replicas: "Replicas"

    def wake(self, job: Job) -> None:
        """Run a job soon."""
        ...

    def restream(self, partition: "Partition") -> None:
        """Make the partition's stream fit its state."""
        ...


class Reopening:
    """The node's replicas that have failed: each is opened anew when its pause is over."""

    def __init__(self, host: ReopeningHost) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._failed: dict[PartitionId, Partition] = {}
        self._due: dict[PartitionId, float] = {}
        self._pauses: dict[PartitionId, float] = {}
        self._job = Job("reopen", self._reopen_due)

    def failed(self, partition: "Partition") -> None:
        """Have a replica opened anew, later the more often it has failed in a row."""
        settings, now = self._host.settings, self._host.clock.monotonic()
        number = partition.partition_id
        with self._lock:
            last = self._due.get(number, float("-inf"))
            calm = now - last > settings.reopen_ms_max / 1000
            doubled = 0.0 if calm else 2 * self._pauses.get(number, 0.0)
            pause = max(settings.reopen_ms_min / 1000, doubled)
            self._pauses[number] = pause = min(pause, settings.reopen_ms_max / 1000)
            self._failed[number] = partition
            self._due[number] = now + pause

    def tick(self, now: float) -> None:
        """Have done what is due."""
        if self._failed and any(self._due[number] <= now for number in list(self._failed)):
            self._host.wake(self._job)

    def _reopen_due(self) -> None:
        now = self._host.clock.monotonic()
        with self._lock:
            due = [p for n, p in self._failed.items() if self._due[n] <= now]
            for partition in due:
                del self._failed[partition.partition_id]
        for partition in due:
            try:
                opened = self._host.replicas.reopen(partition)
            except (RezoneError, OSError) as error:
                partition.log.warning("cannot open a failed replica yet", error=str(error))
                self.failed(partition)
                continue
            if opened is not None:
                opened.log.info("a failed replica is open again", log_end=opened.store.log_end)
                self._host.restream(opened)
                opened.wake()
