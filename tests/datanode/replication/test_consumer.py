"""The follower's side of a channel by hand: what is on the wire of a stream that is over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from replica_cluster import unchecked

from rezone.datanode.clock.clock_bound import ClockBound
from rezone.datanode.replication.consumer import (
    UNANSWERED_MS_MAX,
    ConsumerChannel,
    ConsumerStream,
)
from rezone.datanode.scheduling.unread import Unread
from rezone.datanode.settings import NodeSettings, SystemClock
from rezone.storage.budget import Tally
from rezone.wire.messages import (
    CloseStream,
    ConnectionClosed,
    Entries,
    FetchLog,
    Message,
    OpenConnection,
    PartitionId,
    StreamOk,
    StreamRequest,
)
from rezone.wire.transport.channel import pack, unpack
from rezone.wire.transport.flight import NodeClient

P = 0
WAIT_SECONDS = 20
SETTINGS = NodeSettings(reconnect_ms_min=1, reconnect_ms_max=1)
ENTRIES = Entries(partition=P, leader_epoch=1, committed_offset=5)


class Wire:
    """A leader's end, by hand: what the consumer sends, and what it is sent, one after the other.

    It stands for the connection and its one channel; `close` ends neither.
    """

    def __init__(self) -> None:
        self.sent: queue.Queue[Message] = queue.Queue()
        self.waited_seconds = 0.0
        self._frames: queue.Queue[Message | None] = queue.Queue()
        self._idle = threading.Semaphore(0)
        self.at_close: list[Message] = []
        self.open = threading.Event()
        self.open.set()
        self.broken = False

    def channel(self, _kind: str) -> Wire:
        """Return the channel."""
        return self

    def send(self, message: Message) -> None:
        """Take what the consumer sends; `at_close` travels while it says that a stream is over."""
        if isinstance(message, CloseStream):
            for late in self.at_close:
                self.say(late)
        self.sent.put(message)

    def send_packed(self, frame: bytes) -> None:
        """Take a frame."""
        assert self.open.wait(WAIT_SECONDS)
        if self.broken:
            raise OSError("the connection is cut off")
        self.send(unpack(memoryview(frame))[0])

    def receive(self) -> tuple[Message, memoryview] | None:
        """Give the consumer the next frame, when there is one."""
        self._idle.release()
        message = self._frames.get(timeout=WAIT_SECONDS)
        return None if message is None else (message, memoryview(b""))

    def say(self, message: Message | None) -> None:
        """Send the consumer a message, None for the end, and wait until it is dealt with."""
        assert self._idle.acquire(timeout=WAIT_SECONDS)
        self._frames.put(message)
        if message is not None and not isinstance(message, ConnectionClosed):
            assert self._idle.acquire(timeout=WAIT_SECONDS)
            self._idle.release()

    def heard(self, kind: type[Any]) -> Any:
        """Return the next message of a kind from the consumer."""
        while True:
            message = self.sent.get(timeout=WAIT_SECONDS)
            if isinstance(message, kind):
                return message

    def ok(self, opaque: int) -> None:
        """Answer a stream request."""
        self.say(
            StreamOk(
                opaque=opaque, partition=P, leader_epoch=1, failover_log=(), committed_offset=0
            )
        )

    def cancel(self) -> None:
        """Break the channel."""
        self._frames.put(None)

    def close(self) -> None:
        """End nothing."""


class Rows:
    """A partition that counts what it is given."""

    partition_id: PartitionId = P

    def __init__(self) -> None:
        self.started: list[int] = []
        self.entries = 0

    def stream_request(self, opaque: int) -> StreamRequest:
        """Ask from the beginning."""
        return StreamRequest(
            opaque=opaque, partition=P, high_offset=0, partition_uuid="", leader_epoch=1
        )

    def stream_started(self, answer: StreamOk) -> None:
        """Note which request is answered."""
        self.started.append(answer.opaque)

    def receive(self, *_: Any, **__: Any) -> None:
        """Count."""
        self.entries += 1

    def ack_of(self, opaque: int) -> FetchLog:
        """Return an ack."""
        return FetchLog(
            partition=P, fetch_offset=0, max_fetch_bytes=1, kv_applied_offset=0, opaque=opaque
        )

    def stream_failed(self, error: str) -> None:
        """Take no notice."""


class Case:
    """A consumer channel, its partition, and the wires of its connections."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.wires: queue.Queue[Wire] = queue.Queue()
        self.unsent = Tally(1 << 20)
        clock = unchecked(SystemClock())
        self.consumer = ConsumerChannel(
            name="uid:1->0",
            node=1,
            peer=0,
            address="by hand",
            zone_uid="uid",
            settings=SETTINGS,
            clock=clock,
            clock_bound=ClockBound(clock, SETTINGS.clock_bound_ahead_ms),
            connect=lambda _: cast("NodeClient", self._connect()),
            unread=Unread(clock, 10_000, threading.Event()),
            unsent=self.unsent,
        )

    def _connect(self) -> Wire:
        wire = Wire()
        self.wires.put(wire)
        return wire

    def want(self) -> None:
        """Have the partition streamed."""
        self.consumer.want(cast("Any", self.rows))

    def wire(self) -> Wire:
        """Return the next connection."""
        return self.wires.get(timeout=WAIT_SECONDS)


@pytest.fixture
def case() -> Iterator[Case]:
    """Give a case; its thread ends with it."""
    made = Case()
    yield made
    made.consumer.close(WAIT_SECONDS)


@pytest.mark.proves("DCP-02", "DCP-12")
def test_what_is_on_the_wire_of_an_earlier_request_is_refused(case: Case) -> None:
    """Rows of the stream before would be taken for the first ones of the new one."""
    case.want()
    wire = case.wire()
    first = wire.heard(StreamRequest).opaque
    wire.ok(first)
    wire.say(ENTRIES)
    assert (case.rows.started, case.rows.entries) == ([first], 1)
    case.want()
    second = wire.heard(StreamRequest).opaque
    assert second > first
    wire.say(ENTRIES)
    wire.ok(first)
    assert (case.rows.started, case.rows.entries) == ([first], 1)
    wire.ok(second)
    wire.say(ENTRIES)
    assert (case.rows.started, case.rows.entries) == ([first, second], 2)


@pytest.mark.proves("DCP-12")
def test_a_closed_stream_takes_nothing_though_its_leader_has_not_heard(case: Case) -> None:
    """A replica would go on being filled after the coordinator was told that it is not."""
    case.want()
    wire = case.wire()
    wire.ok(wire.heard(StreamRequest).opaque)
    wire.at_close = [ENTRIES]
    case.consumer.unwant(P)
    wire.heard(CloseStream)
    wire.say(ENTRIES)
    assert case.rows.entries == 0


@pytest.mark.proves("DCP-01")
def test_a_connection_that_gave_way_to_another_is_left_with_all_that_came(case: Case) -> None:
    """Rows of a connection that its producer has given up would go among those of the next."""
    case.want()
    wire = case.wire()
    first = wire.heard(StreamRequest).opaque
    wire.ok(first)
    wire.say(ConnectionClosed(reason="another one of this name"))
    again = case.wire()
    hello = again.heard(OpenConnection)
    assert (hello.name, hello.node) == ("uid:1->0", 1)
    second = again.heard(StreamRequest).opaque
    assert second > first
    again.say(ENTRIES)
    assert case.rows.entries == 0, "not before the handshake"
    again.ok(second)
    again.say(ENTRIES)
    assert case.rows.entries == 1


@pytest.mark.proves("TR-03")
def test_what_a_leader_does_not_read_is_counted(case: Case) -> None:
    """A leader whose window is closed would have this node hold what its memory page never tells.

    It is given back when the frame leaves, and when the channel breaks instead.
    """
    case.want()
    wire = case.wire()
    request = wire.heard(StreamRequest)
    wire.ok(request.opaque)
    ack = wire.heard(FetchLog)
    for breaks in (False, True):
        wire.open.clear()
        sender = threading.Thread(target=case.consumer.ack, args=(P,), name="durable")
        sender.start()
        until = SystemClock().monotonic() + WAIT_SECONDS
        while not case.unsent.used:
            assert SystemClock().monotonic() < until, "what waits is not counted"
            sender.join(0.01)
        assert case.unsent.used == len(pack(ack))
        wire.broken = breaks
        wire.open.set()
        sender.join(WAIT_SECONDS)
        assert case.unsent.used == 0


def test_a_request_that_nobody_answers_is_made_again_within_a_bound() -> None:
    """Asserts pauses that double up to a bound, and never are shorter than the setting.

    Without it a replica whose request was lost some times stays a learner for days.
    """
    stream, now, pauses = ConsumerStream(cast("Any", Rows()), 0.0), 0.0, []
    for _ in range(12):
        stream.ask(1, now)
        asked = now
        while not stream.take_due(now, 3000):
            now += 1.0
        pauses.append(now - asked)
    assert pauses[:3] == [4.0, 7.0, 13.0]
    assert max(pauses) == pauses[-1] == UNANSWERED_MS_MAX / 1000 + 1.0
    stream.ask(1, now)
    assert not stream.take_due(now + 999.0, 1_000_000)
