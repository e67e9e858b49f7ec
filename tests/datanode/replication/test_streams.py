"""Streams: asked for, rolled back, added, counted, estimated, and ended by a takeover."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from replica_cluster import Client, Coordinator, cluster, keys_in
from test_replication import Peer

from rezone.datanode.replication.stream import end_of
from rezone.datanode.settings import NodeSettings
from rezone.storage.state.meta import MetaFile, PartitionMeta
from rezone.wire.errors import NotLeaderError, NotReadyError, RezoneError
from rezone.wire.messages import (
    CommitOffsets,
    ConnectionStatistics,
    Entries,
    FailoverEntry,
    FetchLog,
    LeaseRequest,
    Message,
    NodeStatistics,
    OpenConnection,
    Role,
    SetState,
    StatisticsRequest,
    StreamOk,
    StreamRefused,
    StreamRequest,
    TakeoverState,
    ZoneConfig,
)
from rezone.wire.transport.channel import CHANNEL_ERRORS

P, Q = 0, 1
TWO = ZoneConfig(zone="t", zone_uid="uid-test", partitions=2)
QUICK_RETRY = NodeSettings(reconnect_ms_min=5, reconnect_ms_max=20)


class Refusing:
    """Keeps the handshake of one partition from ending until it is let go."""

    def __init__(self, leader: Any) -> None:
        self.asked = threading.Event()
        self._open = leader.open_stream
        self._refuses = True
        leader.open_stream = self

    def __call__(self, stream: Any, request: StreamRequest) -> Message:
        """Answer a stream request."""
        self.asked.set()
        if self._refuses:
            raise NotReadyError("not yet")
        answer: Message = self._open(stream, request)
        return answer

    def let_go(self) -> None:
        """Let the next handshake end."""
        self._refuses = False


@pytest.mark.proves("DCP-02", "DCP-12")
def test_a_handshake_that_takes_long_holds_no_other_stream_up(tmp_path: Path) -> None:
    """Two streams that end are asked for again; each begins when its own handshake is done.

    A stream would be taken for one that runs while it rolls back, or others would wait for it.
    """
    with cluster(tmp_path, 2, config=TWO, settings=QUICK_RETRY) as c:
        for partition in (P, Q):
            c.create(partition, (0, 1))
            c.until_each("streams", [partition], lambda p: c.replica(0, p).leading.streams)
            for _ in range(2):
                c.end_streams(1, partition)
            c.until_each("ended", [partition], lambda p: not c.replica(0, p).leading.streams)
        refusing = Refusing(c.replica(0, P).leading)
        c.stream_again(1, P)
        assert refusing.asked.wait(10)
        c.stream_again(1, Q)
        c.until("the other streams", lambda: c.replica(0, Q).leading.streams)
        c.until("told why", lambda: "not yet" in c.replica(1, P).following.error)
        assert not c.replica(0, P).leading.streams, "its handshake is not done"
        refusing.let_go()
        c.until("both stream", lambda: c.replica(0, P).leading.streams)


@pytest.mark.proves("DCP-03")
def test_a_follower_asks_for_what_is_behind_its_log_and_says_of_which_branch_that_is(
    tmp_path: Path,
) -> None:
    """It would get rows twice, or rows of a history that is not that of those before them."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        k = Client(c)
        k.put(P, {b"a": b"1", b"b": b"1"})
        c.until("caught up", lambda: c.replica(1).store.durable_end == 2)
        store, following = c.replica(1).store, c.replica(1).following
        (branch,) = store.meta.failover_log
        request = following.stream_request(5)
        assert (request.opaque, request.leader_epoch) == (5, 1)
        assert (request.high_offset, request.partition_uuid) == (2, branch.partition_uuid)
        store.update_meta(failover_log=(branch, FailoverEntry("begun at the end", 2)))
        assert following.stream_request(6).partition_uuid == branch.partition_uuid
        k.close()


@pytest.mark.proves("DCP-05")
def test_one_that_is_rolled_back_to_nothing_gives_up_one_branch_after_the_other(
    tmp_path: Path,
) -> None:
    """All rows would travel again, because a leader does not know a branch of the last few."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        k = Client(c)
        for key in (b"a", b"b", b"c"):
            k.put(P, {key: b"1"})
        c.until("caught up", lambda: c.replica(1).store.durable_end == 3)
        c.end_streams(1, P)
        store = c.replica(1).store
        store.update_meta(
            failover_log=(*store.meta.failover_log, FailoverEntry("nobody knows it", 2))
        )
        for log_end in (2, 0):
            c.replica(1).following.roll_back(0)
            assert store.log_end == log_end
        k.close()


@pytest.mark.proves("DCP-04")
def test_the_leaders_failover_log_is_on_disk_in_place_of_the_own_before_the_first_ack(
    tmp_path: Path,
) -> None:
    """After a crash the follower would ask with a branch of history that nobody knows."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        c.until("streams", lambda: c.replica(0).leading.streams)
        c.end_streams(1, P)
        c.until("ended", lambda: not c.replica(0).leading.streams)
        c.replica(1).store.update_meta(failover_log=(FailoverEntry("own", 0),))
        copy = tmp_path / "disk at the first ack"
        leading = c.replica(0).leading
        acked = leading.acked

        def first_ack(stream: Any, ack: FetchLog, **options: Any) -> None:
            if not copy.exists():
                # As a crash of the machine would leave it: what is in the files, and no more.
                copy.mkdir()
                for file in (c.nodes[1].directory / "partitions" / str(P)).glob("meta.*"):
                    shutil.copy(file, copy)
            acked(stream, ack, **options)

        leading.acked = first_ack  # type: ignore[method-assign]
        c.stream_again(1, P)
        c.until("acked", copy.exists)
        k = Client(c)
        k.put(P, {b"a": b"1"})
        log = c.replica(0).store.meta.failover_log
        assert MetaFile(copy, PartitionMeta()).value.failover_log == log
        assert "own" not in {entry.partition_uuid for entry in log}
        k.close()


def named(c: Coordinator, node: int, name: str) -> ConnectionStatistics:
    """Return a node's statistics of one connection."""
    found: NodeStatistics = c.call(node, StatisticsRequest(), NodeStatistics)
    assert found.node == node
    (connection,) = [each for each in found.connections if each.name == name]
    return connection


@pytest.mark.proves("DCP-14")
def test_both_sides_count_a_stream_under_the_connections_name(tmp_path: Path) -> None:
    """Of a move that does not advance nobody could say which connection holds it up."""
    with cluster(tmp_path, 2, config=TWO) as c:
        k = Client(c)
        for partition in (P, Q):
            c.create(partition, (0, 1))
            (key,) = keys_in(partition, 2, 1)
            k.put(partition, {key: b"v" * 100})
        name = "uid-test:1->0"
        producing, consuming = named(c, 0, name), named(c, 1, name)
        assert (producing.producing, producing.peer) == (True, 1)
        assert (consuming.producing, consuming.peer) == (False, 0)
        assert [s.partition for s in producing.streams] == [P, Q]
        for sent, received in zip(producing.streams, consuming.streams, strict=True):
            assert (sent.partition, sent.active) == (received.partition, received.active)
            assert sent.active
            assert sent.bytes == received.bytes > 100
            assert sent.frames >= 1
            assert received.frames >= 1
            assert (sent.sent_offset, sent.acked_offset, sent.missing_rows) == (1, 1, 0)
            assert sent.in_flight_bytes == 0
        c.end_streams(1, P)
        c.until("ended", lambda: [s.partition for s in named(c, 0, name).streams] == [Q])
        k.close()


@pytest.mark.proves("DCP-06")
def test_the_estimate_is_what_the_consumer_has_not_acked(tmp_path: Path) -> None:
    """A leader would hand over to a candidate that still needs minutes, or wait for ever."""
    with cluster(tmp_path, 1) as c:
        c.create(P, (0, 1), leader=0)
        c.change(P, isr=(0,))
        k = Client(c)
        peer = Peer(c, 0, "by hand")
        assert isinstance(peer.ask(opaque=1, max_fetch_bytes=1 << 20), StreamOk)
        for i in range(5):
            k.put(P, {b"%d" % i: b"v"})
        (stream,) = named(c, 0, "by hand").streams
        assert stream.missing_rows == 5
        ack = FetchLog(
            partition=P, fetch_offset=3, max_fetch_bytes=1, kv_applied_offset=0, opaque=1
        )
        peer.channel.send(ack)
        c.until("counted", lambda: named(c, 0, "by hand").streams[0].missing_rows == 2)
        peer.close()
        k.close()


def next_step(peer: Peer) -> int | Message:
    """Return the end offset of the next rows on a channel, or the next message of another kind."""
    while True:
        frame = peer.channel.receive()
        assert frame is not None
        message, body = frame
        if not isinstance(message, Entries | CommitOffsets | LeaseRequest):
            return message
        if body:
            return end_of(bytes(body))


@pytest.mark.proves("DCP-06", "DCP-10")
def test_the_order_of_a_takeover_on_the_wire(tmp_path: Path) -> None:
    """The old leader would write on behind Active, or die before the candidate is close."""
    settings = NodeSettings(takeover_rows_max=0, takeover_quiet_ms=0, replica_lag_ms_max=60_000)
    with (
        cluster(tmp_path, 1, settings=settings) as c,
        # Left open by a failure, it would hold the process's end.
        contextlib.closing(Peer(c, 0, "by hand")) as peer,
    ):
        c.create(P, (0, 1), leader=0)
        leader = c.replica(0)
        assert isinstance(peer.ask(opaque=1, max_fetch_bytes=1 << 20), StreamOk)

        def write(key: bytes) -> None:
            """Write without waiting: the answer needs an ack of the hand-made consumer."""
            k = Client(c)

            def put() -> None:
                with contextlib.suppress(RezoneError):
                    k.put(P, {key: b"v"}, retry=False)

            threading.Thread(target=put, daemon=True).start()

        def ack(offset: int, ready_epoch: int = 0) -> None:
            peer.channel.send(
                FetchLog(
                    partition=P,
                    fetch_offset=offset,
                    max_fetch_bytes=1 << 20,
                    kv_applied_offset=offset,
                    opaque=1,
                    ready_epoch=ready_epoch,
                )
            )

        def progress() -> tuple[int, int]:
            known = leader.require_leadership().follower(1)
            return known.durable, known.ready_epoch

        write(b"before")
        assert next_step(peer) == 1
        c.authorise(P, 1)
        c.takeover(P)
        pending = next_step(peer)
        assert isinstance(pending, SetState)
        assert (pending.state, pending.end_offset) == (TakeoverState.PENDING, 1)
        # It is not dead while the candidate misses rows: another one is taken and streamed.
        write(b"meanwhile")
        assert next_step(peer) == 2
        assert (leader.role, leader.transfer.state) == (Role.LEADER, TakeoverState.PENDING)
        # Nor while the candidate has not said that it waits for just this.
        for offset, ready_epoch in ((1, 2), (2, 0), (2, 1)):
            ack(offset, ready_epoch)
            c.until("counted", lambda: progress() == (offset, ready_epoch))  # noqa: B023 - at once
            with leader.lock:
                assert leader.takeover.step() is None
        assert (leader.role, leader.transfer.state) == (Role.LEADER, TakeoverState.PENDING)
        ack(2, 2)
        active = next_step(peer)
        assert isinstance(active, SetState)
        assert (active.state, active.end_offset) == (TakeoverState.ACTIVE, 2)
        assert (active.leader_epoch, active.next_epoch) == (1, 2)
        c.until("it follows", lambda: leader.role is Role.FOLLOWER)
        # Nothing more is taken, and nothing follows on the stream: the next frame is the answer
        # to something else.
        with pytest.raises(NotLeaderError):
            Client(c).put(P, {b"after": b"v"}, retry=False)
        assert leader.store.log_end == 2
        other = StreamRequest(
            opaque=9, partition=5, high_offset=0, partition_uuid="", leader_epoch=1
        )
        peer.channel.send(other)
        last = next_step(peer)
        assert isinstance(last, StreamRefused)
        assert last.opaque == 9


def test_who_asks_for_a_stream_of_a_node_that_ends_keeps_no_connection(tmp_path: Path) -> None:
    """A step that was under way would leave a thread that waits for its leader for ever."""
    with cluster(tmp_path, 3) as c:
        c.create(0, (0, 1))
        links = c.node(1).links
        links.close(10)
        before = {each.peer for each in links.consumers()}
        links._warm_up(2)
        (late,) = (each for each in links.consumers() if each.peer not in before)
        for thread in threading.enumerate():
            if thread.name == f"receive {late.name}":
                thread.join(10)
                assert not thread.is_alive(), "it waits for a stream"


def test_a_follower_that_comes_while_a_node_ends_is_refused(tmp_path: Path) -> None:
    """A channel that was opened before and says its name after is not served.

    Its follower would stay with the node that ends, and never connect to the one that is started
    in its place.
    """
    with cluster(tmp_path, 3) as c:
        client = c.connect(c.nodes[1].address)
        channel = client.channel("replication")
        links = c.node(1).links
        links.close(10)
        channel.send(OpenConnection(name="late", node=2, zone_uid="uid-test", beats=True))
        with pytest.raises(CHANNEL_ERRORS, match="is stopping"):
            channel.receive()
        assert links.producers() == []
        client.close()
