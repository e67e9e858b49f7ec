"""Who holds which partition, from what several data nodes say."""

from typing import Any, cast

import pytest

from rezone.client.operations.replicas import PartitionReplicas, replicas_in
from rezone.client.operations.zone import Zone
from rezone.client.settings import ClientSettings
from rezone.wire.errors import NotReadyError
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


class Asked:
    """Data nodes that answer from some question on, and how often somebody is asked."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.one = self.all = 0

    def fetch_routes(self) -> RouteTable:
        """Ask one of them."""
        self.one += 1
        self.silent -= 1
        if self.silent > 0:
            raise NotReadyError("nobody answers")
        return told((0, 1), leader_epoch=1, partition_epoch=1)

    def fetch_all_routes(self) -> list[RouteTable]:
        """Ask all of them."""
        self.all += 1
        return [] if self.silent > 0 else [told((0, 1), leader_epoch=1, partition_epoch=1)]

    def pause(self, _attempt: int) -> None:
        """Wait for no time."""


@pytest.mark.proves("SP-07")
@pytest.mark.parametrize(("silent", "one"), [(0, 0), (3, 3)])
def test_nobody_is_asked_twice_for_routes_unless_nobody_answers(silent: int, one: int) -> None:
    """One data node would send the routes of 16,384 partitions twice; one that wakes, none."""
    asked = Asked(silent)
    zone = Zone(cast("Any", asked), ClientSettings(), clock=lambda: 0.0)
    assert zone.fetch_all_routes()
    assert (asked.one, asked.all) == (one, 1 + bool(one))
