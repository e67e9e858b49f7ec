"""Replication between nodes in this process: handshake, rollback, in-sync set, streams, reads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import (
    DEADLINE_SECONDS,
    FAST,
    SCHEMA,
    Client,
    Coordinator,
    cluster,
    keys_in,
    original_id,
)
from resharding_kit import HeldDisk, in_background

from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    LimitExceededError,
    NotEnoughReplicasError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    RezoneError,
)
from rezone.wire.messages import (
    CloseStream,
    ConfigureNode,
    ConnectionClosed,
    Entries,
    FetchLog,
    OpenConnection,
    RoutesRequest,
    RouteTable,
    ScanTicket,
    StreamEnd,
    StreamNeedsSnapshot,
    StreamOk,
    StreamRefused,
    StreamRequest,
    StreamRollback,
    ZoneConfig,
)
from rezone.wire.transport.channel import Channel
from rezone.wire.transport.flight import NodeClient

P = 0


def caught_up(c: Coordinator, *nodes: int) -> None:
    """Wait until nodes hold all that the leader has."""
    leader = c.records[P].leader
    c.until(
        "all caught up",
        lambda: all(
            c.report(n, P).durable_offset == c.report(leader, P).log_end_offset for n in nodes
        ),
    )


@contextlib.contextmanager
def broken_when_late(channel: Channel) -> Iterator[None]:
    """Break a channel on which what is waited for does not come in time."""
    late = threading.Timer(DEADLINE_SECONDS, channel.cancel)
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


class Peer:
    """A hand-made consumer on a replication channel."""

    def __init__(self, c: Coordinator, node: int, name: str, as_node: int = 1) -> None:
        self.client = NodeClient(c.nodes[node].address)
        self.channel = self.client.channel("replication")
        self.channel.send(OpenConnection(name=name, node=as_node, zone_uid=c.config.zone_uid))

    def ask(self, **changes: Any) -> Any:
        """Request a stream and return the answer."""
        request = {
            "opaque": 7,
            "partition": P,
            "high_offset": 0,
            "partition_uuid": "",
            "leader_epoch": 1,
        }
        self.channel.send(StreamRequest(**{**request, **changes}))
        return self.next(StreamOk, StreamRollback, StreamRefused, StreamNeedsSnapshot)

    def next(self, *kinds: type) -> Any:
        """Return the next message of some kinds; the channel breaks when none comes in time."""
        with broken_when_late(self.channel):
            while (frame := self.channel.receive()) is not None:
                if isinstance(frame[0], kinds):
                    return frame[0]
        return None

    def close(self) -> None:
        """Hang up."""
        self.channel.close()
        self.client.close()


@pytest.mark.proves("DCP-01", "DCP-03", "DCP-04", "DCP-05", "DCP-12", "DCP-13")
def test_the_stream_handshake_by_hand(tmp_path: Path) -> None:
    """A consumer with another history would be fed entries that do not belong after its own."""
    with cluster(tmp_path, 1, settings=NodeSettings(streams_max=1)) as c:
        c.create(P, (0, 1), leader=0)
        c.change(P, isr=(0,))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        k.put(P, {b"b": b"1"})
        peer = Peer(c, 0, "uid-test:1->0")
        ok = peer.ask()
        assert isinstance(ok, StreamOk)
        assert ok.opaque == 7
        (branch,) = ok.failover_log
        assert peer.ask(opaque=8, high_offset=2, partition_uuid=branch.partition_uuid).opaque == 8
        unknown = peer.ask(high_offset=2, partition_uuid="gone")
        assert isinstance(unknown, StreamRollback)
        assert unknown.offset == 0
        beyond = peer.ask(high_offset=9, partition_uuid=branch.partition_uuid)
        assert isinstance(beyond, StreamRollback)
        assert beyond.offset == 2
        assert peer.ask(leader_epoch=0).error.code == "StaleEpoch"
        assert peer.ask(leader_epoch=2).error.code == "NotReady"
        assert peer.ask(partition=5).error.code == "UnknownPartition"

        # Without credit nothing comes; an ack of another stream is no credit.
        assert isinstance(peer.ask(opaque=9), StreamOk)
        ack = FetchLog(partition=P, fetch_offset=0, max_fetch_bytes=1 << 20, kv_applied_offset=0)
        peer.channel.send(ack)
        peer.channel.send(FetchLog(**{**as_dict(ack), "opaque": 9}))
        entries = peer.next(Entries)
        assert entries.committed_offset == 2

        # Credit that comes with the request lets the entries follow the answer at once.
        assert isinstance(peer.ask(opaque=10, max_fetch_bytes=1 << 20), StreamOk)
        assert peer.next(Entries).committed_offset == 2

        peer.channel.send(CloseStream(partition=P))
        assert peer.next(StreamEnd).reason

        # The second of the same name closes the first, whose stream is forgotten.
        assert isinstance(peer.ask(), StreamOk)
        streams = c.replica(0).leading.streams
        assert list(streams) == [1]
        second = Peer(c, 0, "uid-test:1->0")
        assert isinstance(peer.next(ConnectionClosed), ConnectionClosed)
        c.until("its stream is forgotten", lambda: not streams)
        assert isinstance(second.ask(), StreamOk)
        second.close()
        peer.close()
        k.close()


def as_dict(message: Any) -> dict[str, Any]:
    """Return a message's fields."""
    return {name: getattr(message, name) for name in message.__struct_fields__}


@pytest.mark.proves("DCP-13")
def test_limits_on_streams_and_connections_have_clear_errors(tmp_path: Path) -> None:
    """A node would be filled with connections until it fails in some unclear way."""
    settings = NodeSettings(streams_max=0, replication_connections_max=1)
    with cluster(tmp_path, 1, settings=settings) as c:
        c.create(P, (0, 1), leader=0)
        first = Peer(c, 0, "one")
        refused = first.ask()
        assert isinstance(refused, StreamRefused)
        assert refused.error.code == "LimitExceeded"
        second = Peer(c, 0, "two")
        with pytest.raises(Exception, match="which is the limit"):
            second.next(StreamOk)
        first.close()
        second.client.close()


@pytest.mark.proves("DCP-13")
def test_clients_and_followers_have_one_limit_of_connections(tmp_path: Path) -> None:
    """Clients that open channels without end would fill a node that the others count on."""
    with cluster(tmp_path, 1, settings=NodeSettings(connections_max=1)) as c:
        c.create(P, (0,))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        for kind in ("data", "replication"):
            channel = c.client(0).channel(kind)
            limited = pytest.raises(Exception, match="has 1 connections, which is the limit")
            with broken_when_late(channel), limited:
                channel.receive()
        k.close()


@pytest.mark.proves("DCP-05", "RM-08")
def test_a_diverged_leader_rolls_back_and_all_agree(tmp_path: Path) -> None:
    """Rows that only an isolated old leader had would stay there, and digests would differ."""
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        caught_up(c, 1, 2)
        for node in (1, 2):
            c.node(node).links.unlink(P)
        c.until("no streams", lambda: not c.replica(0).leading.streams)
        with pytest.raises((NotReadyError, NotLeaderError)):
            _write_into_the_void(c, k)
        assert c.report(0, P).log_end_offset == 2
        c.change(P, leader=1, leader_epoch=2, isr=(1, 2))
        k.send(P, 2, {b"c": b"3"})
        c.until("node 0 rolled back", lambda: c.report(0, P).log_end_offset == 2)
        c.until_settled("node 0 has joined", lambda: 0 in c.isr(P))
        assert k.get(P, [b"a", b"b", b"c"]) == {b"a": b"1", b"c": b"3"}
        digests = c.until("digests", lambda: c.digests(P))
        assert len({d.digests for d in digests.values()}) == 1
        k.close()


def _write_into_the_void(c: Coordinator, k: Client) -> None:
    """Write to node 0 what cannot be committed, and depose it meanwhile; the others know later."""
    record = msgspec.structs.replace(c.records[P], leader=1, leader_epoch=2, isr=(1, 2))

    def depose() -> None:
        c.until("appended", lambda: c.report(0, P).log_end_offset == 2)
        c.send(P, record, 0)

    thread = threading.Thread(target=depose)
    thread.start()
    try:
        k.send(P, 2, {b"b": b"2"}, retry=False)
    finally:
        thread.join()


@pytest.mark.proves("HS-04", "HS-05")
def test_the_in_sync_set_shrinks_and_grows_by_the_coordinator_only(tmp_path: Path) -> None:
    """A leader alone would acknowledge rows that a later leader does not have."""
    config = ZoneConfig(zone="t", zone_uid="uid-test", partitions=1, min_in_sync_replicas=2)
    with cluster(tmp_path, 3, config=config) as c:
        c.create(P, (0, 1, 2))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        c.nodes[2].stop()
        c.until(
            "shrink proposed",
            lambda: (p := c.report(0, P).proposal) is not None and p.new_isr == (0, 1),
        )
        # Nothing is acknowledged before the answer.
        committed = c.report(0, P).committed_offset
        assert c.replica(0).require_leadership().maximal == {0, 1, 2}
        c.settle()
        k.put(P, {b"b": b"2"})
        assert c.report(0, P).committed_offset == committed + 1
        assert c.isr(P) == {0, 1}
        c.nodes[1].stop()
        c.until_settled("shrunk", lambda: c.isr(P) == {0})
        with pytest.raises(NotEnoughReplicasError):
            k.send(P, 3, {b"c": b"3"}, retry=False)
        # A zone whose rule is changed must not wait for its leaders to move.
        lowered = msgspec.structs.replace(config, min_in_sync_replicas=1)
        c.call(0, ConfigureNode(fence=c.fence(), config=lowered, peers=c.peers))
        k.send(P, 3, {b"c": b"3"})
        for node in (1, 2):
            c.nodes[node].start()
            c.wait_up(node)
        c.until_settled("all are back", lambda: c.isr(P) == {0, 1, 2})
        k.send(P, 3, {b"c": b"3"})
        assert len({d.digests for d in c.until("", lambda: c.digests(P)).values()}) == 1
        k.close()


def test_a_partition_without_work_is_not_ticked(tmp_path: Path) -> None:
    """An idle node would burn a core's tenth, and starve the takeovers of busy ones."""
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        k = Client(c)
        end = k.put(P, {b"a": b"1"}).end_offset
        replicas = [c.replica(node, P) for node in c.nodes]
        c.until("applied everywhere", lambda: all(r.store.applied == end for r in replicas))
        c.until("nothing is due", lambda: all(r.due == float("inf") for r in replicas))
        k.close()


def test_what_a_plain_follower_has_applied_goes_with_its_next_ack(tmp_path: Path) -> None:
    """Each follower would send a frame more, and wake its leader, for what nobody waits for."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        k = Client(c)
        end = k.put(P, {b"a": b"1"}).end_offset
        follower, leadership = c.replica(1, P), c.replica(0, P).leadership
        assert leadership is not None
        c.until("applied", lambda: follower.store.applied == end)
        c.until("nothing is due", lambda: follower.due == float("inf"))
        assert leadership.followers[1].applied < end
        k.put(P, {b"b": b"2"})
        c.until("told", lambda: leadership.followers[1].applied == end)
        k.close()


@pytest.mark.proves("HS-03", "HS-07", "HS-08")
def test_a_standby_gets_into_iss_and_plain_followers_apply_lazily(tmp_path: Path) -> None:
    """A standby that is not in `iss` would never be promoted; one wrongly in it would be slow."""
    settings = NodeSettings(replica_lag_ms_max=400, apply_interval_ms=60_000)
    with cluster(tmp_path, 3, settings=settings) as c:
        c.create(P, (0, 1, 2))
        k = Client(c)
        for i in range(10):
            k.put(P, {b"%d" % i: b"v"})
        c.change(P, hot_standby_replica=1)
        c.until_settled("in iss", lambda: c.records[P].iss == (1,))
        k.put(P, {b"last": b"v"})
        c.until("applied", lambda: c.report(1, P).kv_applied_offset == 11)
        c.until("the leader knows", lambda: c.report(0, P).follower_applied.get(1) == 11)
        c.until("plain, but durable", lambda: c.report(0, P).follower_offsets.get(2) == 11)
        assert c.report(0, P).follower_applied[2] == c.report(2, P).kv_applied_offset < 11
        k.close()


@pytest.mark.proves("DCP-07")
def test_what_is_not_on_the_candidates_disk_is_waited_for(tmp_path: Path) -> None:
    """A leader counts for a follower what that has on its disk, and hands over when it has all.

    Rows would count as safe that one crash loses, right after the move.
    """
    with cluster(tmp_path, 2, settings=FAST) as c:
        c.create(P, (0, 1))
        k = Client(c)
        end = k.put(P, {b"a": b"1"}).end_offset
        c.until("on both disks", lambda: c.report(0, P).follower_offsets.get(1) == end)
        disk = HeldDisk(c.replica(1))
        put, answers = in_background(lambda: k.put(P, {b"b": b"1"}))
        c.until("in the log alone", lambda: c.replica(1).store.log_end > end and disk.holds)
        assert c.report(0, P).follower_offsets[1] == end
        assert c.report(1, P).durable_offset == end
        assert not answers
        disk.let_go()
        put.join(DEADLINE_SECONDS)
        c.until("told", lambda: c.report(0, P).follower_offsets[1] == end + 1)
        assert answers
        k.close()


def test_a_wrong_row_refuses_the_whole_batch(tmp_path: Path) -> None:
    """Half a batch would be written, or rows would land where no reader looks for them."""
    config = ZoneConfig(zone="t", zone_uid="uid-test", partitions=4)
    with cluster(tmp_path, 1, config=config) as c:
        c.create(1, (0,))
        k = Client(c)
        own, foreign = keys_in(1, 4, 2), keys_in(2, 4, 1)
        with pytest.raises(ConflictError, match="stale partition count"):
            k.put(1, {own[0]: b"1", foreign[0]: b"1"})
        with pytest.raises(InvalidRowError):
            k.put(1, {own[0]: b"1", own[1]: b"x" * (2 << 20)})
        with pytest.raises(InvalidRowError):
            k.put(1, {})
        assert c.report(0, 1).log_end_offset == 0
        assert k.get(1, own) == {}
        k.close()


def test_deletes_repeats_and_old_sequences(tmp_path: Path) -> None:
    """A retried batch would be applied twice, or an old one would undo a newer one."""
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        k = Client(c)
        first = k.send(P, 1, {b"a": b"1", b"b": b"1"})
        again = k.send(P, 1, {b"a": b"1", b"b": b"1"})
        assert (again.end_offset, again.commit_time) == (first.end_offset, first.commit_time)
        k.send(P, 2, {b"a": b""}, delete=True)
        with pytest.raises(ConflictError, match="is behind 2"):
            k.send(P, 1, {b"a": b"0"})
        assert k.get(P, [b"a", b"b"]) == {b"b": b"1"}
        assert k.get(P, [b"a", b"b"], as_of=first.commit_time) == {b"a": b"1", b"b": b"1"}
        assert c.report(0, P).log_end_offset == 3
        k.close()


@pytest.mark.proves("B-08")
def test_a_batch_sent_before_under_another_name_is_applied_once(tmp_path: Path) -> None:
    """A write whose answer was lost at a seal would undo what others wrote of its rows since."""
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        before, other = Client(c), Client(c)
        after = Client(c, before.producer_id)
        first = before.send(P, 3, {b"a": b"1"})
        other.send(P, 1, {b"a": b"2"})
        names = (original_id(7, 9, {b"a": b"1"}), original_id(P, 3, {b"a": b"1"}))
        repeat = after.send(P, 4, {b"a": b"1"}, original_ids=names)
        assert (repeat.end_offset, repeat.commit_time) == (first.end_offset, first.commit_time)
        assert after.get(P, [b"a"]) == {b"a": b"2"}
        unapplied = (original_id(7, 4, {b"a": b"3"}),)
        written = after.send(P, 4, {b"a": b"3"}, original_ids=unapplied)
        again = after.send(P, 4, {b"a": b"3"}, original_ids=unapplied)
        assert again.end_offset == written.end_offset > first.end_offset
        assert after.get(P, [b"a"]) == {b"a": b"3"}
        with pytest.raises(LimitExceededError, match="more than 8"):
            after.send(P, 5, {b"a": b"4"}, original_ids=unapplied * 9)
        before.close()
        after.close()


def test_pending_writes_are_bounded(tmp_path: Path) -> None:
    """A leader whose followers hang would take writes until its memory is full."""
    settings = NodeSettings(pending_bytes_partition_max=1 << 10, replica_lag_ms_max=60_000)
    with cluster(tmp_path, 2, settings=settings) as c:
        c.create(P, (0, 1))
        c.nodes[1].stop()
        partition = c.replica(0)
        waiting, refused = Client(c), Client(c)
        outcome: list[RezoneError] = []

        def wait() -> None:
            try:
                waiting.put(P, {b"a": b"x" * 2000}, retry=False)
            except RezoneError as error:
                outcome.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        c.until("pending", lambda: partition.intake.budget.used)
        with pytest.raises(OverloadedError):
            refused.put(P, {b"b": b"x"}, retry=False)
        c.nodes[0].stop()
        thread.join(10)
        assert not thread.is_alive()
        assert isinstance(outcome[0], NotReadyError)
        assert partition.intake.budget.used == 0
        waiting.close()
        refused.close()


@pytest.mark.proves("RM-10", "ZR-12")
def test_any_node_tells_who_leads(tmp_path: Path) -> None:
    """A client with an old route would have to ask the operator, or guess."""
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1))
        routes = c.call(2, RoutesRequest(), RouteTable)
        assert [(a.partition, a.state.leader) for a in routes.partitions] == [(P, 0)]
        for asked, told in (((P,), [P]), ((P, P + 1), [P]), ((P + 1,), [])):
            part = c.call(2, RoutesRequest(partitions=asked), RouteTable)
            assert [a.partition for a in part.partitions] == told
            assert part.peers == routes.peers
        k = Client(c)
        with pytest.raises(NotLeaderError) as caught:
            k.get(P, [b"a"], node=1, retry=False)
        assert caught.value.details["address"] == c.nodes[0].address
        assert caught.value.details["leader"] == 0
        k.close()


def test_reads_as_of_a_time_at_any_replica(tmp_path: Path) -> None:
    """A verification would compare different states, or a reader would see rows come and go."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        k = Client(c)
        first = k.put(P, {b"a": b"1"})
        k.put(P, {b"a": b"2"})
        assert k.get(P, [b"a"], as_of=first.commit_time, node=1) == {b"a": b"1"}
        with pytest.raises(NotReadyError):
            k.get(P, [b"a"], as_of=first.commit_time + 10**12, node=0, retry=False)
        table = NodeClient(c.nodes[0].address).get(ScanTicket(partition=P)).read_all()
        assert table.schema == SCHEMA
        assert table.to_pylist() == [{"key": b"a", "value": b"2"}]
        k.close()


@pytest.mark.proves("DCP-12")
def test_a_stream_is_ended_from_either_side_and_twice(tmp_path: Path) -> None:
    """A stream that was closed would go on, or closing twice would fail."""
    with cluster(tmp_path, 2, settings=FAST) as c:
        c.create(P, (0, 1))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        for _ in range(2):
            c.end_streams(1, P)
        c.until("ended", lambda: not c.replica(0).leading.streams)
        c.change(P)  # any newer record starts it again
        c.until("streams", lambda: c.replica(0).leading.streams)
        reasons: list[str] = []
        following = c.replica(1).following
        stream_ended = following.stream_ended

        def noting(message: StreamEnd) -> None:
            reasons.append(message.reason)
            stream_ended(message)

        following.stream_ended = noting  # type: ignore[method-assign]
        for _ in range(2):
            c.end_streams(0, P)
        c.until("ended by its leader", lambda: "ended here" in reasons)
        c.end_streams(1, P)
        k.close()


def test_process_ids_differ(tmp_path: Path) -> None:
    """A coordinator could not tell a restarted node from the same one."""
    with cluster(tmp_path, 1) as c:
        first = c.node(0).process_id
        c.nodes[0].stop()
        c.nodes[0].start()
        c.wait_up(0)
        assert c.node(0).process_id != first
