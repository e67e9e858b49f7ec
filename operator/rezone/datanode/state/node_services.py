"""What a replica and its parts need of the node they are on; the node is that, tests may be."""

from typing import Protocol

from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.clock.clock_bound import ClockBound
from rezone.datanode.commit.lease import Promise
from rezone.datanode.disk.disk_speed import DiskSpeed
from rezone.datanode.disk.space import DiskSpace
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.scheduling.traced import NodeTracer
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.settings import NodeSettings
from rezone.storage.budget import Budget
from rezone.storage.disk.sync_times import SyncTimes
from rezone.wire.messages import NodeId, PartitionId, ZoneConfig


class NodeServices(Protocol):
    """A replica's node as its parts see it; all methods are safe from any thread."""

    node_id: NodeId
    settings: NodeSettings
    clock: CheckedClock
    budget: Budget
    waiting_reads: Budget
    clock_bound: ClockBound
    foreground: Foreground
    leaving: bool
    space: DiskSpace
    sync_times: SyncTimes
    disk_speed: DiskSpeed
    tracer: NodeTracer | None

    @property
    def config(self) -> ZoneConfig:
        """The zone."""
        ...

    def wake(self, job: Job) -> None:
        """Run a job soon."""
        ...

    def run_here(self, job: Job) -> None:
        """Run a job in the calling thread, which holds no lock and has nothing better to do."""
        ...

    def runs(self, job: Job) -> bool:
        """Whether a job runs, or will soon."""
        ...

    def touched(self, partition: PartitionId, *, at_once: bool) -> None:
        """Note that the report of a replica has changed."""
        ...

    def address(self, node: NodeId) -> str:
        """Return a node's address, empty when unknown."""
        ...

    def promised_to(self, leader: NodeId) -> Promise:
        """Return what a node that leads was promised."""
        ...
