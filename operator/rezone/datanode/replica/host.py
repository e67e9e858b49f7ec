"""What a partition needs of the node it is on; the node is that, tests may be."""

from typing import TYPE_CHECKING, Protocol

from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.clock.told import ToldTimes
from rezone.datanode.commit.lease import Promise
from rezone.datanode.disk.disk_speed import DiskSpeed
from rezone.datanode.disk.space import DiskSpace
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.settings import NodeSettings
from rezone.storage.budget import Budget
from rezone.storage.disk.sync_times import SyncTimes
from rezone.wire.messages import NodeId, PartitionId, ZoneConfig

if TYPE_CHECKING:
    from rezone.datanode.replica.replica import Replica


class Host(Protocol):
    """A partition's node; all methods are safe from any thread."""

    node_id: NodeId
    settings: NodeSettings
    clock: CheckedClock
    budget: Budget
    waiting_reads: Budget
    told: ToldTimes
    foreground: Foreground
    leaving: bool
    space: DiskSpace
    sync_times: SyncTimes
    disk_speed: DiskSpeed

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

    def touched(self, partition: PartitionId, *, at_once: bool) -> None:
        """Note that the report of a replica has changed."""
        ...

    def address(self, node: NodeId) -> str:
        """Return a node's address, empty when unknown."""
        ...

    def promised_to(self, leader: NodeId) -> Promise:
        """Return what a node that leads was promised."""
        ...

    def restream(self, replica: "Replica") -> None:
        """Make the partition's stream fit its state; called without any lock."""
        ...

    def warn_clients(self, replica: "Replica", candidate: NodeId) -> None:
        """Tell who has used this replica lately to whom it hands over; without any lock."""
        ...

    def tell_clients(self, replica: "Replica") -> None:
        """Tell those who have used this replica lately who leads; called without any lock."""
        ...

    def replica_failed(self, replica: "Replica") -> None:
        """Have a replica opened anew that cannot go on; called under any lock."""
        ...

    def ack(self, replica: "Replica") -> None:
        """Ack to the leader what is durable."""
        ...
