"""Who is needed when a node shall stop, and how long it waits: the rest is in real processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from replica_cluster import FAST, Client, Coordinator, HandClock, cluster
from resharding_kit import seal

from rezone.controller.work.settings import CoordinatorSettings
from rezone.datanode.service.leaving import leave
from rezone.wire.errors import ConflictError, StaleEpochError
from rezone.wire.messages import ConfigureNode, Fence, ZoneConfig, ZoneDeleted

P = 0
ZONE = ZoneConfig(zone="test", zone_uid="uid-test", partitions=1, next_partitions=2)
TWO = msgspec.structs.replace(ZONE, min_in_sync_replicas=2)


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    """Make the one partition of a zone on three nodes."""
    with cluster(tmp_path, config=ZONE) as made:
        made.create(P, (0, 1, 2))
        yield made


def needed(c: Coordinator, *isr: int) -> set[int]:
    """Return who is needed when these are in sync."""
    c.change(P, isr=isr)
    return {node for node in (0, 1, 2) if c.replica(node).is_needed}


@pytest.mark.proves("B-06", "B-07")
def test_who_is_needed_follows_from_who_is_in_sync(c: Coordinator) -> None:
    """A pod would stop with the only copy of a row, or wait a minute for nothing."""
    c.call(0, ConfigureNode(fence=c.fence(), config=TWO, peers=c.peers))
    c.call(1, ConfigureNode(fence=c.fence(), config=TWO, peers=c.peers))
    assert needed(c, 0, 1, 2) == {0, 1, 2}, "each has its turn to hand over or be let go"
    assert needed(c, 0, 1) == {0, 1}, "the third may be in sync soon"
    assert needed(c, 0) == {0}
    c.change(P, replicas=(0, 1))
    assert needed(c, 0, 1) == {0}, "nobody can take the follower's place"
    assert needed(c, 0) == {0}
    c.change(P, replicas=(0,))
    assert needed(c, 0) == set(), "nobody will ever take its place"


def test_a_sealed_partition_needs_who_has_it_alone(c: Coordinator) -> None:
    """Its targets read it to its end."""
    seal(c, P)
    c.until_each("it knows of the seal", (0, 1, 2), lambda n: c.replica(n).is_sealed)
    assert needed(c, 0, 1, 2) == needed(c, 0, 1) == set()
    assert needed(c, 0) == {0}


def test_a_silent_coordinator_is_waited_for_by_who_is_alone_in_sync(tmp_path: Path) -> None:
    """An operator that is away for some seconds would cost rows that only this disk has."""
    settings = msgspec.structs.replace(FAST, leave_unread_ms_max=1)
    with cluster(tmp_path, 2, settings=settings) as c:
        c.create(P, (0, 1))
        Client(c).put(P, {b"a": b"1"})
        c.nodes[1].stop()
        c.until_settled("alone", lambda: c.isr(P) == {0})
        looks = itertools.count()

        def hurried(_seconds: float) -> bool:
            if next(looks) == 5:
                c.nodes[1].start()
            elif c.isr(P) == {0}:
                c.settle()
            return False

        assert not leave(c.node(0), hurried), "nobody has led after it"
        assert c.isr(P) == {0, 1}


@pytest.mark.proves("B-07")
def test_an_operator_that_fails_over_is_waited_for(tmp_path: Path) -> None:
    """What is led here would wait for a leader's lease: an update often stops an operator as well.

    Asserted: a node that is told to stop while nobody has asked for its report for the length of an
    operator's Lease and twice as much to start again ends relieved, and leads nothing.
    """
    clock = HandClock()
    away_seconds = 3 * CoordinatorSettings().lease_duration_seconds
    with cluster(tmp_path, config=TWO, clock=clock) as c:
        c.create(P, (0, 1, 2))
        node, looks = c.node(0), itertools.count(1)

        def hurried(_seconds: float) -> bool:
            if (look := next(looks)) <= away_seconds:
                clock.advance(1.0)
            elif look == away_seconds + 1:
                c.move(P, 1)
            else:
                c.settle()
            return False

        assert leave(node, hurried), "it has stopped before anybody could lead in its place"
        assert c.records[P].leader == 1
        assert c.isr(P) == {1, 2}


def test_a_deleted_zone_has_no_use_for_a_node(c: Coordinator) -> None:
    """Each pod of a zone that is deleted would wait for an operator that asks no more."""
    with pytest.raises(StaleEpochError):
        c.call(0, ZoneDeleted(fence=Fence(coordinator_epoch=0, revision=9), zone_uid=ZONE.zone_uid))
    with pytest.raises(ConflictError, match="not of zone another"):
        c.call(0, ZoneDeleted(fence=c.fence(), zone_uid="another"))
    assert c.node(0).is_needed

    c.call(0, ZoneDeleted(fence=c.fence(), zone_uid=ZONE.zone_uid))

    assert leave(c.node(0), lambda _: pytest.fail("it waits"))
