"""Which data nodes hold which partition, for whoever reads a replica that it names."""

from collections.abc import Iterable
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


def replicas_in(tables: Iterable[RouteTable]) -> tuple[PartitionReplicas, ...]:
    """Return the replicas of all partitions in route tables, by partition; the newest word counts.

    A data node that was out of reach goes on to call itself in sync.
    """
    newest: dict[PartitionId, PartitionAssignment] = {}
    for table in tables:
        for each in table.partitions:
            known = newest.get(each.partition)
            if known is None or _epochs(known) < _epochs(each):
                newest[each.partition] = each
    return tuple(_replicas_of(newest[partition]) for partition in sorted(newest))


def _epochs(one: PartitionAssignment) -> tuple[int, int]:
    return one.state.leader_epoch, one.state.partition_epoch


def _replicas_of(one: PartitionAssignment) -> PartitionReplicas:
    state = one.state
    followers = sorted({*state.isr} - {state.leader})
    behind = sorted({*state.replicas} - {*state.isr, state.leader})
    return PartitionReplicas(one.partition, state.leader, (state.leader, *followers), tuple(behind))
