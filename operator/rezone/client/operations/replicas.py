"""Which data nodes hold which partition, for whoever reads a replica that it names."""

from typing import NamedTuple

from rezone.wire.messages import NodeId, PartitionAssignment, PartitionId, RouteTable


class PartitionReplicas(NamedTuple):
    """The data nodes with a replica of one partition.

    `in_sync` are those that have all that is acknowledged, the leader first; `behind` the others:
    they are copied, or catch up. Those beside the leader are in the order of their ids.
    """

    partition: PartitionId
    leader: NodeId
    in_sync: tuple[NodeId, ...]
    behind: tuple[NodeId, ...]


def replicas_in(table: RouteTable) -> tuple[PartitionReplicas, ...]:
    """Return the replicas of all partitions in a route table, by partition."""
    ordered = sorted(table.partitions, key=lambda each: each.partition)
    return tuple(_replicas_of(each) for each in ordered)


def _replicas_of(one: PartitionAssignment) -> PartitionReplicas:
    state = one.state
    followers = sorted({*state.isr} - {state.leader})
    behind = sorted({*state.replicas} - {*state.isr, state.leader})
    return PartitionReplicas(one.partition, state.leader, (state.leader, *followers), tuple(behind))
