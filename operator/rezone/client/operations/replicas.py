"""Which data nodes hold which partition, for whoever reads a replica that it names."""

from typing import NamedTuple

from rezone.wire.messages import NodeId, PartitionAssignment, PartitionId, RouteTable


class PartitionReplicas(NamedTuple):
    """The data nodes with a replica of one partition, by their ids in ascending order.

    `in_sync` are those that have all that is acknowledged, without the leader; `behind` the others:
    they are copied, or catch up.
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
    in_sync = {*state.isr} - {state.leader}
    behind = {*state.replicas} - in_sync - {state.leader}
    return PartitionReplicas(
        one.partition, state.leader, tuple(sorted(in_sync)), tuple(sorted(behind))
    )
