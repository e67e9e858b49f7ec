"""What a replica needs of the node it is on: what its parts do, and what is about it as a whole."""

from typing import Protocol, TypeVar

from rezone.datanode.state.node_services import NodeServices
from rezone.wire.messages import NodeId

ReplicaT_contra = TypeVar("ReplicaT_contra", contravariant=True)


class Host(NodeServices, Protocol[ReplicaT_contra]):
    """The node of replicas of the class `ReplicaT_contra`; all methods are safe from any thread."""

    def restream(self, replica: ReplicaT_contra) -> None:
        """Make the partition's stream fit its state; called without any lock."""
        ...

    def warn_clients(self, replica: ReplicaT_contra, candidate: NodeId) -> None:
        """Tell who has used this replica lately to whom it hands over; without any lock."""
        ...

    def tell_clients(self, replica: ReplicaT_contra) -> None:
        """Tell those who have used this replica lately who leads; called without any lock."""
        ...

    def replica_failed(self, replica: ReplicaT_contra) -> None:
        """Have a replica opened again that cannot go on; called under any lock."""
        ...

    def ack(self, replica: ReplicaT_contra) -> None:
        """Ack to the leader what is durable."""
        ...
