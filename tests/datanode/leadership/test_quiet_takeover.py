"""Takeovers that keep out of the way of writes: when the old leader dies, and whom it refuses."""

import gc
import threading
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import Client, Coordinator, HandClock, LocalNode, cluster

from rezone.client import TableClient
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.routing.routes import RouteCache
from rezone.datanode.process import settle_memory
from rezone.datanode.replication.stream import ProducerStream
from rezone.wire.errors import NotLeaderError
from rezone.wire.messages import (
    LeaderMoved,
    LeaderMoving,
    Message,
    Role,
    SetState,
    TakeoverState,
    WriteRequest,
    WriteResult,
)
from rezone.wire.transport.channel import Frame

PARTITION = 0


class HeldWrite:
    """A write that is in all logs, and that node 2 does not ack before `go` is set."""

    def __init__(self, c: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.result: WriteResult | None = None
        self._client = Client(c)
        self._client.put(PARTITION, {b"before": b"1"})
        store = c.replica(2, PARTITION).store
        sync = store.sync

        def held() -> int:
            assert self.go.wait(10)
            return sync()

        monkeypatch.setattr(store, "sync", held)
        self._thread = threading.Thread(target=self._put, daemon=True)
        self._thread.start()
        c.until("appended", lambda: c.replica(0, PARTITION).store.log_end == 2)

    def _put(self) -> None:
        self.result = self._client.put(PARTITION, {b"held": b"1"})

    def answered(self) -> WriteResult:
        """Let node 2 ack; returns the answer."""
        self.go.set()
        self._thread.join(10)
        self._client.close()
        assert self.result is not None
        return self.result


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Coordinator]:
    """Three replicas; node 1 may take over from node 0."""
    with cluster(tmp_path, 3) as c:
        c.create(PARTITION, (0, 1, 2))
        c.authorise(PARTITION, 1)
        yield c


def quiet_ms(c: Coordinator, milliseconds: int) -> None:
    """Have the old leader wait so long for a moment without writes."""
    partition = c.replica(0, PARTITION)
    partition.settings = msgspec.structs.replace(partition.settings, takeover_quiet_ms=milliseconds)


@pytest.mark.proves("HS-10")
def test_writes_under_way_are_answered_before_their_leader_dies(
    zone: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be sent again, and be at the new leader before that has its followers."""
    quiet_ms(zone, 10_000)
    write = HeldWrite(zone, monkeypatch)
    zone.takeover(PARTITION)
    old = zone.replica(0, PARTITION)
    candidate = old.require_leadership().follower(1)
    zone.until("the candidate is ready", lambda: candidate.ready_epoch == 2)
    old.pump()
    assert old.transfer.state is TakeoverState.PENDING
    assert write.answered().leader_epoch == 1
    zone.until("node 1 leads", lambda: zone.report(1, PARTITION).role is Role.LEADER)


@pytest.mark.proves("HS-10")
def test_writes_without_a_moment_between_them_do_not_hold_a_takeover_up(
    zone: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition with many writers would keep its leader until the takeover fails."""
    write = HeldWrite(zone, monkeypatch)
    zone.takeover(PARTITION)
    zone.until("node 1 leads", lambda: zone.report(1, PARTITION).role is Role.LEADER)
    assert write.answered().leader_epoch == 2


@pytest.mark.proves("DCP-10")
def test_the_state_change_has_its_place_behind_the_last_row(
    zone: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Active leaves behind every row of the old leader's log.

    A candidate that reads it before the last rows would not lead, and nobody would until a retry.
    """
    placed: list[tuple[int, Message]] = []
    send_at = ProducerStream.send_at

    def spied(stream: ProducerStream, offset: int, message: Message, **options: Any) -> None:
        placed.append((offset, message))
        send_at(stream, offset, message, **options)

    monkeypatch.setattr(ProducerStream, "send_at", spied)
    client = Client(zone)
    client.put(PARTITION, {b"a": b"1", b"b": b"2"})
    zone.takeover(PARTITION)
    zone.until("node 1 leads", lambda: zone.report(1, PARTITION).role is Role.LEADER)
    changes = [(at, m) for at, m in placed if isinstance(m, SetState)]
    active = [(at, m.end_offset) for at, m in changes if m.state is TakeoverState.ACTIVE]
    assert active == [(2, 2)]


@pytest.mark.proves("RM-10")
def test_a_write_is_sent_on_before_anything_is_made_of_it(zone: Coordinator) -> None:
    """Writers would hear of the new leader by as much later as it takes to check their rows."""
    client = Client(zone)

    def request(opaque: int) -> WriteRequest:
        producer_id = "00000000-0000-0000-0000-000000000001"
        return WriteRequest(opaque=opaque, partition=PARTITION, producer_id=producer_id, sequence=1)

    node = zone.nodes[2]
    assert isinstance(node, LocalNode)
    with pytest.raises(NotLeaderError) as told:
        client._call(PARTITION, request, b"no rows", retry=False, address=node.address)
    assert told.value.details["leader"] == 0
    client.close()


@pytest.mark.proves("RM-10")
def test_a_client_hears_of_a_new_leader_before_it_writes_again(zone: Coordinator) -> None:
    """Its next write would make a trip to the old leader in the middle of the write gap."""
    with TableClient([zone.nodes[2].address]) as client:
        client.write([{"key": b"k", "value": b"1"}])
        zone.takeover(PARTITION)
        zone.until("told", lambda: _leader_known(client) == 1)
        assert client.write([{"key": b"k", "value": b"2"}])[0].leader_epoch == 2


@pytest.mark.proves("RM-10")
def test_a_client_is_connected_to_the_next_leader_before_that_leads(
    zone: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next write would wait for a connection in the middle of the write gap.

    On a busy machine that takes some hundred milliseconds, and more when an attempt is given up.
    """
    heard: list[type[Message]] = []
    take = Dispatcher._on_frame

    def noted(self: Dispatcher, frame: Frame) -> None:
        take(self, frame)
        heard.append(type(frame[0]))

    monkeypatch.setattr(Dispatcher, "_on_frame", noted)
    with TableClient([zone.nodes[2].address]) as client:
        client.write([{"key": b"k", "value": b"1"}])
        next_node = client._dispatcher._nodes.connection(zone.nodes[1].address)
        assert not next_node.is_open
        zone.takeover(PARTITION)
        zone.until("told", lambda: LeaderMoved in heard)
        zone.until("connected", lambda: next_node.is_open)
    assert heard[-2:] == [LeaderMoving, LeaderMoved]


def _leader_known(client: TableClient) -> int | None:
    leader = client._dispatcher.leader(PARTITION)
    return leader.node if leader else None


@pytest.mark.proves("RM-10")
def test_news_of_a_leader_that_is_over_changes_nothing() -> None:
    """A client would go back to a node that has handed over since, and be refused there."""
    routes = RouteCache(["127.0.0.1:1"])
    led = NotLeaderError("", leader=2, address="127.0.0.1:2", epoch=5)

    def news(partition: int, epoch: int) -> LeaderMoved:
        address = "127.0.0.1:3"
        return LeaderMoved(partition=partition, leader=3, address=address, leader_epoch=epoch)

    routes.moved(news(PARTITION, 9))
    assert routes.leader(PARTITION) is None, "of a partition that the client does not know"
    first = routes.correct(PARTITION, led)
    routes.moved(news(PARTITION, 4))
    assert routes.leader(PARTITION) == first
    routes.moved(news(PARTITION, 6))
    assert routes.leader(PARTITION) == (3, "127.0.0.1:3", 6)


def test_what_a_node_begins_with_is_collected_no_more() -> None:
    """Every full garbage collection would stop all of the node's threads for 50 ms."""
    settle_memory()
    try:
        assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()


class Gap:
    """The write gap of one takeover, in which no node's clock goes on and no thread may sleep.

    It begins when the old leader takes no more writes, and ends with the first one that the new
    leader has answered. What waits for a time waits for ever in between. `others` are threads from
    before the zone, such as those of Spark: they may sleep.
    """

    def __init__(
        self,
        clock: HandClock,
        c: Coordinator,
        monkeypatch: pytest.MonkeyPatch,
        others: Container[threading.Thread],
    ) -> None:
        self.slept: list[tuple[str, float]] = []
        self.begun = threading.Event()
        old = c.replica(0, PARTITION).takeover
        dies, sleep = old._die, time.sleep

        def dying() -> None:
            clock.stop()
            self.begun.set()
            dies()

        def sleeping(seconds: float) -> None:
            thread = threading.current_thread()
            if self.begun.is_set() and thread not in others:
                self.slept.append((thread.name, seconds))
            sleep(seconds)

        monkeypatch.setattr(old, "_die", dying)
        monkeypatch.setattr(time, "sleep", sleeping)


@pytest.mark.proves("HS-10")
@pytest.mark.parametrize("run", range(3))
def test_nothing_in_the_write_gap_waits_for_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: int
) -> None:
    """With all in sync a takeover ends without one tick of a clock, and without a sleep.

    Each pause in it would stop all writers of the partition for as long.
    """
    clock, others = HandClock(), {*threading.enumerate()}
    with cluster(tmp_path, 3, clock=clock) as c:
        c.create(PARTITION, (0, 1, 2))
        client = Client(c)
        client.put(PARTITION, {b"before": b"%d" % run})
        c.authorise(PARTITION, 1)
        c.until(
            "both follow",
            lambda: {1, 2} <= {*c.replica(0, PARTITION).leading.streams},
        )
        gap = Gap(clock, c, monkeypatch, others)
        c.takeover(PARTITION)
        assert gap.begun.wait(10)
        written = client.put(PARTITION, {b"after": b"1"}, seconds=10)
        clock.go_on()
        assert written.leader_epoch == 2
        assert gap.slept == []
