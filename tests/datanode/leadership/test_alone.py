"""A node that restarts while all others are away: what it leads alone, it serves alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import FAST, Client, Coordinator, LocalNode, SetClock, cluster, keys_in

from rezone.datanode.state.age import age_ms_of
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import (
    AGE_UNKNOWN_MS,
    ConfigureNode,
    ReadRequest,
    ReadResult,
    ZoneConfig,
)

LED, FOLLOWED = 0, 1
ZONE = ZoneConfig(
    zone="test", zone_uid="uid-test", partitions=2, replicas=2, min_in_sync_replicas=1
)


@contextlib.contextmanager
def lone(directory: Path, machine: SetClock) -> Iterator[Coordinator]:
    """Restart node 0 while node 1 is away: each leads a partition, and is alone in its set."""
    with cluster(directory, 2, settings=FAST, config=ZONE, clocks=[machine, SetClock()]) as c:
        client = Client(c)
        for partition, leader in ((LED, 0), (FOLLOWED, 1)):
            c.create(partition, (leader, 1 - leader))
            client.put(partition, rows(partition, b"1"))
        c.until("applied", lambda: c.replica(0, FOLLOWED).store.applied_time)
        c.nodes[1].stop()
        c.until_settled("alone", lambda: c.isr(LED) == {0})
        c.change(FOLLOWED, isr=(1,))
        restart(c)
        yield c


def restart(c: Coordinator) -> None:
    """Restart node 0."""
    node = c.nodes[0]
    assert isinstance(node, LocalNode)
    node.stop()
    node.start()
    c.wait_up(0)


def rows(partition: int, value: bytes) -> dict[bytes, bytes]:
    """Return a row of a partition."""
    (key,) = keys_in(partition, ZONE.partitions, 1)
    return {key: value}


def age_of(c: Coordinator, key: bytes, **asked: Any) -> int:
    """Read a followed row from node 0; return the age that it tells."""
    keys = pa.record_batch([pa.array([key], pa.binary())], names=["key"])

    def request(opaque: int) -> ReadRequest:
        return ReadRequest(opaque=opaque, partition=FOLLOWED, **asked)

    address = c.nodes[0].address
    result, _ = Client(c)._call(FOLLOWED, request, to_ipc(keys), retry=False, address=address)
    assert isinstance(result, ReadResult)
    return result.age_ms


@pytest.mark.proves("B-06", "NW-05")
def test_a_node_that_restarts_alone_takes_writes_of_what_it_leads_alone(tmp_path: Path) -> None:
    """A partition that another node leads kept it from the time while that node was away."""
    with lone(tmp_path, SetClock()) as c:
        assert Client(c).put(LED, rows(LED, b"2")).end_offset == 2


@pytest.mark.proves("NW-05")
def test_a_node_that_must_wait_for_others_gives_no_times_alone(tmp_path: Path) -> None:
    """A row that others have to have would get the time of a clock that nobody has compared."""
    with lone(tmp_path, SetClock()) as c:
        c.until("it goes by itself", lambda: c.node(0).clock.gives)
        two = msgspec.structs.replace(ZONE, min_in_sync_replicas=2)
        c.call(0, ConfigureNode(fence=c.fence(), config=two, peers=c.peers))
        c.until("one is not enough", lambda: not c.node(0).clock.gives)
        c.call(0, ConfigureNode(fence=c.fence(), config=ZONE, peers=c.peers))
        c.until("it goes by itself again", lambda: c.node(0).clock.gives)
        c.change(LED, isr=(0, 1))
        c.until("another one has to have each row", lambda: not c.node(0).clock.gives)


@pytest.mark.proves("NW-05")
def test_a_node_that_gives_times_alone_tells_no_age_of_what_it_follows(tmp_path: Path) -> None:
    """With a clock that was set back, old rows would pass as new enough."""
    key = next(iter(rows(FOLLOWED, b"")))
    with lone(tmp_path, SetClock()) as c:
        c.until("it goes by itself", lambda: c.node(0).clock.gives)
        as_of = c.replica(0, FOLLOWED).positions.readable_time
        assert age_of(c, key, as_of=as_of) == AGE_UNKNOWN_MS
        with pytest.raises(NotReadyError, match="compared"):
            age_of(c, key, max_age_ms=60_000)
        assert age_ms_of(c.replica(0, LED), as_of) >= 0, "its own times are those of its clock"
        c.nodes[1].start()
        c.wait_up(1)
        c.until("compared", lambda: c.node(0).clock.is_compared)
        assert 0 <= age_of(c, key, as_of=as_of) <= 60_000


@pytest.mark.proves("NW-05")
def test_a_node_that_leads_nothing_gives_no_times_alone(tmp_path: Path) -> None:
    """Its clock would be believed before it is compared: it begins to lead with what it has."""
    with cluster(tmp_path, 2, settings=FAST, config=ZONE) as c:
        clock = c.node(0).clock
        clock.look(clock.monotonic(), at_once=True)
        assert not clock.gives
        c.create(LED, (0,))
        c.until("it leads alone", lambda: clock.gives)
