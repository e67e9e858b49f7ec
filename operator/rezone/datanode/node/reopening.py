"""Opening failed replicas again: from what their disk has, with growing pauses.

The log is cut where it was last known to be durable.

Concurrency: ticked by the node's thread, works as a job.
"""

import threading
from typing import Protocol

from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.node.replicas import Replicas
from rezone.datanode.replica.replica import Replica
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import RezoneError
from rezone.wire.messages import PartitionId


class ReopeningHost(Protocol):
    """What is needed of the node."""

    settings: NodeSettings
    clock: CheckedClock
    replicas: Replicas

    def wake(self, job: Job) -> None:
        """Run a job soon."""
        ...

    def restream(self, replica: Replica) -> None:
        """Make the partition's stream fit its state."""
        ...


class Reopening:
    """The node's replicas that have failed: each is opened again when its pause is over."""

    def __init__(self, host: ReopeningHost) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._failed: dict[PartitionId, Replica] = {}
        self._due: dict[PartitionId, float] = {}
        self._pauses: dict[PartitionId, float] = {}
        self._job = Job("reopen", self._reopen_due)

    def failed(self, replica: Replica) -> None:
        """Have a replica opened again, later the more often it has failed in a row."""
        settings, now = self._host.settings, self._host.clock.monotonic()
        number = replica.partition_id
        with self._lock:
            last = self._due.get(number, float("-inf"))
            calm = now - last > settings.reopen_ms_max / 1000
            doubled = 0.0 if calm else 2 * self._pauses.get(number, 0.0)
            pause = max(settings.reopen_ms_min / 1000, doubled)
            self._pauses[number] = pause = min(pause, settings.reopen_ms_max / 1000)
            self._failed[number] = replica
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
