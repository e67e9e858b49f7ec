"""Read leases between real nodes: who may answer for the newest state, and who must wait."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import FAST, Client, Coordinator, LocalNode, cluster, keys_in

from rezone.datanode.commit.lease import ROUNDS_OPEN_MAX, Lease, Promise, Promises, Rounds, left_of
from rezone.datanode.settings import NodeSettings
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    Failure,
    LeaderAndIsr,
    LeaseGrant,
    LeaseRequest,
    ReadRequest,
    ReadResult,
    ZoneConfig,
)
from rezone.wire.transport.channel import unpack
from rezone.wire.transport.flight import NodeClient

P, Q = 0, 1
KEY = b"k"


def leased(lease_ms: int, **changes: int) -> NodeSettings:
    """Return settings with leases of this length."""
    return msgspec.structs.replace(FAST, lease_ms=lease_ms, hold_ms_max=200, **changes)


def elect(c: Coordinator, leader: int, *told: int) -> LeaderAndIsr:
    """Let another replica lead, as when its leader is lost, and tell only some nodes."""
    record = c.records[P]
    record = msgspec.structs.replace(
        record,
        leader=leader,
        isr=tuple(node for node in record.isr if node != record.leader),
        leader_epoch=record.leader_epoch + 1,
        partition_epoch=record.partition_epoch + 1,
    )
    c.send(P, record, *told)
    return record


class Reader:
    """Reads one key of one node as fast as it can: when each read began, and what it gave."""

    def __init__(self, c: Coordinator, node: int) -> None:
        self.seen: list[tuple[float, bytes]] = []
        self.refused = 0
        self._client, self._node = Client(c), node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                value = self._client.get(P, [KEY], node=self._node, retry=False)[KEY]
            except RezoneError:
                self.refused += 1
            else:
                self.seen.append((begun, value))

    def end(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join()


@pytest.mark.proves("B-09")
def test_a_leader_that_does_not_know_it_was_replaced_answers_no_stale_read(tmp_path: Path) -> None:
    """Clients with old routes would read values that were overwritten long ago."""
    with cluster(tmp_path, settings=leased(1_000)) as c:
        c.create(P, (0, 1, 2))
        Client(c).put(P, {KEY: b"old"})
        reader = Reader(c, 0)
        c.until("the leader answers", lambda: reader.seen)
        elect(c, 1, 1, 2)
        replaced_at = time.monotonic()
        Client(c).put(P, {KEY: b"new"})
        acked_at = time.monotonic()
        refused = reader.refused
        c.until("the old leader refuses", lambda: reader.refused > refused + 1)
        reader.end()
        assert {value for _, value in reader.seen} == {b"old"}
        assert any(begun > replaced_at for begun, _ in reader.seen), "its lease still ran"
        assert [begun for begun, _ in reader.seen if begun > acked_at] == []
        assert Client(c).get(P, [KEY], node=1) == {KEY: b"new"}


@pytest.mark.proves("HS-10")
def test_a_planned_takeover_waits_for_no_lease(tmp_path: Path) -> None:
    """Each move of a leader would stop writes for as long as a lease lasts."""
    with cluster(tmp_path, settings=leased(60_000)) as c:
        c.create(P, (0, 1, 2))
        Client(c).put(P, {KEY: b"old"})
        Client(c).get(P, [KEY])
        c.move(P, 1)
        Client(c).put(P, {KEY: b"new"})
        assert Client(c).get(P, [KEY]) == {KEY: b"new"}
        with pytest.raises(RezoneError, match="leads"):
            Client(c).get(P, [KEY], node=0, retry=False)


def test_a_takeover_in_the_meantime_hands_the_wait_on(tmp_path: Path) -> None:
    """The third leader has promised the first one nothing that the second would not know of."""
    with cluster(tmp_path, settings=leased(60_000)) as c:
        c.create(P, (0, 1, 2))
        Client(c).put(P, {KEY: b"old"})
        Client(c).get(P, [KEY])
        elect(c, 1, 1, 2)
        held_until = c.replica(1).require_leadership().hold_until
        assert held_until > time.monotonic() + 30
        c.until("node 2 follows", lambda: 2 in c.replica(1).leading.streams)
        c.move(P, 2)
        assert c.replica(2).require_leadership().hold_until == pytest.approx(held_until, abs=5)


@pytest.mark.proves("B-09")
def test_a_restarted_node_keeps_the_promise_it_has_forgotten(tmp_path: Path) -> None:
    """It would commit while the leader it had followed still answers by its lease."""
    with cluster(tmp_path, settings=leased(1_500)) as c:
        c.create(P, (0, 1, 2))
        Client(c).put(P, {KEY: b"old"})
        Client(c).get(P, [KEY])
        c.nodes[1].stop()
        restarted_at = time.monotonic()
        c.nodes[1].start()
        c.wait_up(1)
        elect(c, 1, 1, 2)
        Client(c).put(P, {KEY: b"new"})
        assert time.monotonic() - restarted_at > 1.5


@pytest.mark.proves("B-09")
def test_without_leases_each_read_is_confirmed_by_all(tmp_path: Path) -> None:
    """Leases could not be turned off, or a read would be answered by a leader that is alone."""
    with cluster(tmp_path, settings=leased(0, replica_lag_ms_max=60_000)) as c:
        c.create(P, (0, 1, 2))
        Client(c).put(P, {KEY: b"v"})
        client = Client(c)
        for _ in range(5):
            assert client.get(P, [KEY], retry=False) == {KEY: b"v"}
        c.nodes[2].stop()
        with pytest.raises(NotReadyError, match="cannot answer"):
            client.get(P, [KEY], retry=False)


def test_a_read_that_waits_does_not_hold_up_others_of_its_channel(tmp_path: Path) -> None:
    """One partition without leases would stop the writes and reads of all others of a client."""
    settings = leased(0, replica_lag_ms_max=60_000)
    settings = msgspec.structs.replace(settings, hold_ms_max=60_000)
    zone = ZoneConfig(zone="test", zone_uid="uid-test", partitions=2)
    with cluster(tmp_path, settings=settings, config=zone) as c:
        c.create(P, (0, 1, 2))
        c.create(Q, (0, 1))
        keys = {p: keys_in(p, 2, 1) for p in (P, Q)}
        for p in (P, Q):
            Client(c).put(p, {keys[p][0]: b"v"})
        c.nodes[2].stop()
        c.until("node 2 is gone", lambda: 2 not in c.replica(0).leading.streams)
        node = NodeClient(c.nodes[0].address)
        channel = node.channel("data")
        for p in (P, Q):
            batch = pa.record_batch([pa.array(keys[p], pa.binary())], names=["key"])
            channel.send(ReadRequest(opaque=p, partition=p), to_ipc(batch))
        answer, _ = channel.receive() or (None, None)
        assert isinstance(answer, ReadResult)
        assert answer.opaque == Q
        c.replica(0).stop()
        answer, _ = channel.receive() or (None, None)
        assert isinstance(answer, Failure), "it was forgotten when the replica stopped"
        channel.close()
        node.close()


class Sent:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send_packed(self, frame: bytes) -> None:
        """Keep it."""
        self.messages.append(unpack(memoryview(frame))[0])


@pytest.mark.proves("B-09")
def test_a_replica_that_has_left_is_in_no_lease_although_its_stream_runs(tmp_path: Path) -> None:
    """Until its leader hears of it, a lease would go on for a partition that has a new leader."""
    with cluster(tmp_path, settings=leased(1_000)) as c:
        c.create(P, (0, 1))
        Client(c).put(P, {KEY: b"v"})
        node = c.nodes[1]
        assert isinstance(node, LocalNode)
        assert node.node is not None
        (consumer,) = [x for x in node.node.links.consumers() if x.peer == 0]
        sent: Any = Sent()
        consumer._grant(sent, LeaseRequest(round=1, time=5))
        partition = c.replica(1)
        with partition.lock:
            partition.roles.hand_over(2, 2)  # the channel is not told: its stream runs on
        consumer._grant(sent, LeaseRequest(round=2, time=6))
        assert [grant.left for grant in sent.messages] == [(), (P,)]
        assert partition.roles.promises.until > time.monotonic(), "it forgot what it had promised"
        assert partition.write_clock.floor >= 5


@pytest.mark.proves("B-09")
def test_a_lease_is_counted_from_the_question_and_a_little_shorter() -> None:
    """The leader would answer when the follower's promise is over already."""
    rounds = Rounds(1_000, 2)
    assert rounds.is_due(0.0)
    asked = rounds.ask(10.0, 77)
    assert not rounds.is_due(10.3)
    assert rounds.is_due(10.4)
    grant = LeaseGrant(round=asked.round, lease_ms=500)
    assert rounds.answered(grant) == Lease(10.0, 10.49, 77)
    assert rounds.answered(grant) is None


def test_rounds_without_an_answer_are_bounded() -> None:
    """A follower that hangs would fill the leader's memory."""
    rounds = Rounds(1_000, 2)
    first = rounds.ask(0.0, 0)
    for number in range(ROUNDS_OPEN_MAX):
        rounds.ask(float(number), 0)
    assert rounds.answered(LeaseGrant(round=first.round, lease_ms=1)) is None


def test_the_longest_promise_counts() -> None:
    """A short promise to one leader would cancel a long one to another."""
    promises = Promises(100.0, 2_000)
    assert promises.until == 102.0
    promises.made(Promise(105.0, 0))
    promises.made(Promise(103.0, 0))
    assert promises.until == 105.0
    assert Promises(100.0, 0).until < 0, "who has never promised anything waits for nothing"
    assert left_of({3: False, 1: True, 2: False}) == (2, 3)
