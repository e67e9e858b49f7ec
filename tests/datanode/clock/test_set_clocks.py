"""Real nodes whose clocks are set, while they run and while they are down."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_cluster import FAST, Coordinator, LocalNode, SetClock, cluster

from rezone.client import ClientSettings, StaleRowsError, TableClient
from rezone.datanode.clock.clock_bound import NAME
from rezone.datanode.commit.lease import NEVER
from rezone.wire.messages import NodeReport, ReportRequest, ZoneConfig

KEY = b"k"
MONTH = 30 * 86_400 * 1_000_000
NEAR = 30 * 1_000_000
"""More than any test here takes, and hardly anything beside what clocks are wrong by."""

MACHINES = 3


def now() -> int:
    """Return the true time in microseconds."""
    return time.time_ns() // 1000


@contextlib.contextmanager
def group(directory: Path) -> Iterator[tuple[Coordinator, TableClient, list[SetClock]]]:
    """Give a partition of three replicas, led by node 0, a client, and the nodes' machines."""
    machines = [SetClock() for _ in range(MACHINES)]
    config = ZoneConfig(
        zone="test", zone_uid="uid-test", partitions=1, replicas=3, min_in_sync_replicas=2
    )
    with cluster(directory, MACHINES, settings=FAST, config=config, clocks=machines) as c:
        c.create(0, (0, 1, 2))
        with TableClient(list(c.peers.values()), settings=ClientSettings()) as client:
            yield c, client, machines


def clock_text(c: Coordinator, node: int) -> str:
    """Return what a node says of its clock."""
    report: NodeReport = c.call(node, ReportRequest(), NodeReport)
    return report.clock_text


def write(client: TableClient, value: bytes) -> int:
    """Write the row; return its time."""
    (written,) = client.write([{"key": KEY, "value": value}])
    return written.commit_time


@pytest.mark.proves("NW-05")
@pytest.mark.parametrize("error", [-MONTH, MONTH])
def test_clocks_that_are_set_change_no_time_and_no_age(tmp_path: Path, error: int) -> None:
    """The zone's times stayed a month ahead for good, ages were 0 and later rows invisible."""
    with group(tmp_path) as (c, client, machines):
        first = write(client, b"1")
        clocks = [c.node(node).clock for node in c.nodes]
        c.until("they agree", lambda: all(clock.gives for clock in clocks))
        for machine in machines:
            machine.ahead = error
        c.until("seen", lambda: all(abs(clock.offset_micros) > MONTH / 2 for clock in clocks))
        assert abs(write(client, b"2") - now()) < NEAR
        for node in c.nodes:
            c.until("it says so", functools.partial(clock_text, c, node))
            said = clock_text(c, node)
            assert "was set 2592000.0 s" in said
        for machine in machines:
            machine.ahead = 0
        last = write(client, b"3")
        assert first < last < now() + NEAR
        found = client.read_any([{"key": KEY}], max_staleness_seconds=20)
        assert 0 <= found.age_seconds <= 20
        assert client.read([{"key": KEY}], as_of=last)["value"].to_pylist() == [b"3"]
        for node in c.nodes:
            assert c.replica(node).positions.readable_time < now() + NEAR
            assert c.node(node).clock_bound.until < now() + NEAR


@pytest.mark.proves("NW-05")
def test_a_node_that_begins_with_a_wrong_clock_gives_no_times_until_it_is_right(
    tmp_path: Path,
) -> None:
    """Its first row would drive the zone's times a month ahead, which cannot be taken back."""
    with group(tmp_path) as (c, client, machines):
        write(client, b"1")
        restarted = c.nodes[0]
        assert isinstance(restarted, LocalNode)
        restarted.stop()
        machines[0].ahead = MONTH
        restarted.start()
        c.wait_up(0)
        c.until("it says so", lambda: c.call(0, ReportRequest(), NodeReport).clock_off)
        assert c.node(0).clock.is_off
        assert c.replica(0).store.last_commit_time < now() + NEAR
        c.move(0, 1)
        assert abs(write(client, b"2") - now()) < NEAR
        c.until("it follows", lambda: c.replica(0).store.last_commit_time > now() - NEAR)
        assert c.node(0).clock_bound.until < now() + NEAR
        machines[0].ahead = 0
        c.until("it is well", lambda: c.node(0).clock.gives)
        c.move(0, 0)
        assert abs(write(client, b"3") - now()) < NEAR


def until_bounded(c: Coordinator) -> int:
    """Wait until node 0 has its bound on the disk, which a write does not need; return it."""
    bound: int = c.until("a bound", lambda: c.node(0).clock_bound.until)
    return bound


def damage(node: LocalNode) -> None:
    """Leave nothing to be read of what a node that is down has told."""
    path = node.directory / NAME
    path.write_bytes(b"?" * path.stat().st_size)


@pytest.mark.proves("NW-05")
@pytest.mark.parametrize("error", [-MONTH, MONTH])
def test_a_node_that_has_lost_what_it_told_waits_for_the_time_of_others(
    tmp_path: Path, error: int
) -> None:
    """It took its own clock for right: rows got times below what was read, or a month ahead."""
    with group(tmp_path) as (c, client, machines):
        write(client, b"1")
        leader = c.nodes[0]
        assert isinstance(leader, LocalNode)
        told = until_bounded(c)
        leader.stop()
        damage(leader)
        machines[0].ahead = error
        leader.start()
        c.wait_up(0)
        c.until("it is off", lambda: c.node(0).clock.is_off)
        assert c.node(0).clock_bound.lost
        assert c.node(0).clock_bound.before < now() + NEAR
        followers = c.replica(0).require_leadership().followers
        c.until("leases", lambda: [f.lease.until > NEVER for f in followers.values()] == [True] * 2)
        assert not any(each.leased for each in followers.values()), "nobody may join yet"
        machines[0].ahead = 0
        c.until("found", lambda: not c.node(0).clock_bound.lost and c.node(0).clock.gives)
        assert told - NEAR < c.node(0).clock_bound.before < now() + NEAR
        c.until("two streams", lambda: len(c.replica(0).leading.streams) == 2)
        # The answer that begins a stream is on its way when the leader counts the stream.
        clocks = [c.replica(node).write_clock for node in (1, 2)]
        before = c.node(0).clock_bound.before
        c.until("told with the next stream", lambda: all(each.floor >= before for each in clocks))
        assert now() - NEAR < write(client, b"2") < now() + NEAR


@pytest.mark.proves("NW-05")
def test_a_node_that_is_alone_goes_on_above_its_rows_when_it_has_lost_what_it_told(
    tmp_path: Path,
) -> None:
    """It would wait for ever for others to agree, or write below times that it gave itself."""
    config = ZoneConfig(
        zone="test", zone_uid="uid-test", partitions=1, replicas=1, min_in_sync_replicas=1
    )
    machine = SetClock()
    with cluster(tmp_path, 1, settings=FAST, config=config, clocks=[machine]) as c:
        c.create(0, (0,))
        node = c.nodes[0]
        assert isinstance(node, LocalNode)
        with TableClient(list(c.peers.values()), settings=ClientSettings()) as client:
            first = write(client, b"1")
            until_bounded(c)
            node.stop()
            damage(node)
            machine.ahead = -MONTH
            node.start()
            c.wait_up(0)
            assert write(client, b"2") > first + FAST.clock_bound_ahead_ms * 1_000


@pytest.mark.proves("NW-05")
def test_a_leader_without_a_time_grows_its_in_sync_set(tmp_path: Path) -> None:
    """If the only other member died, nobody could lead in place of a node with a wrong clock."""
    with group(tmp_path) as (c, client, machines):
        write(client, b"1")
        leader, late = c.nodes[0], c.nodes[2]
        c.watch()
        late.stop()
        c.until("out", lambda: c.isr(0) == {0, 1})
        write(client, b"2")
        leader.stop()
        machines[0].ahead = MONTH
        leader.start()
        c.wait_up(0)
        c.until("without a time", lambda: c.node(0).clock.is_off)
        late.start()
        c.wait_up(2)
        c.until("in", lambda: c.isr(0) == {0, 1, 2})
        assert c.node(0).clock.is_off
        c.move(0, 2)
        assert abs(write(client, b"3") - now()) < NEAR


@pytest.mark.proves("NW-05")
def test_an_age_that_cannot_be_told_is_not_told(tmp_path: Path) -> None:
    """Rows of a zone whose times were driven ahead counted as of just now, however old."""
    with group(tmp_path) as (c, client, _):
        c.replica(0).write_clock.raise_to(now() + MONTH)  # as another leader's clock had left it
        ahead = write(client, b"1")
        assert ahead > now() + MONTH - NEAR
        c.until("applied", lambda: c.replica(1).positions.readable_time >= ahead)
        with pytest.raises(StaleRowsError, match="unknown") as told:
            client.read_any([{"key": KEY}], max_staleness_seconds=3600)
        assert told.value.age_seconds == float("inf")
        assert client.read_any([{"key": KEY}], as_of=ahead).age_seconds == float("inf")
        scanned = client.scan_any(as_of=ahead)
        assert scanned.age_seconds == float("inf")
        assert client.read([{"key": KEY}])["value"].to_pylist() == [b"1"], (
            "the newest rows are right"
        )
