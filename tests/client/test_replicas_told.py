"""Who holds which partition, from what several data nodes say."""

import pytest

from rezone.client.operations.replicas import PartitionReplicas, replicas_in
from rezone.wire.messages import LeaderAndIsr, PartitionAssignment, RouteTable, ZoneConfig

CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=1)


def told(isr: tuple[int, ...], *, leader_epoch: int, partition_epoch: int) -> RouteTable:
    """Return what a data node says of partition 0."""
    state = LeaderAndIsr(
        leader=isr[0],
        leader_epoch=leader_epoch,
        isr=isr,
        replicas=(0, 1, 2),
        coordinator_epoch=1,
        partition_epoch=partition_epoch,
    )
    return RouteTable(
        config=CONFIG, partitions=(PartitionAssignment(partition=0, state=state),), peers={}
    )


@pytest.mark.proves("SP-07")
def test_the_newest_word_says_who_is_in_sync() -> None:
    """A data node that was out of reach calls itself in sync: it would be compared as different."""
    stale = told((0, 1, 2), leader_epoch=1, partition_epoch=5)
    later = told((0, 1), leader_epoch=1, partition_epoch=6)
    led = told((1, 0), leader_epoch=2, partition_epoch=6)
    for tables in ((stale, later), (later, stale)):
        assert replicas_in(tables) == (PartitionReplicas(0, 0, (0, 1), (2,)),)
    assert replicas_in((led, later, stale)) == (PartitionReplicas(0, 1, (1, 0), (2,)),)
