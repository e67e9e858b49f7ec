"""One channel to one node: how it ends."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from rezone.client.connections.connection import HEADER_BYTES, PUSH_BYTES_MAX, Connection
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Ack, ConnectionClosed, Message, ReadRequest, ReadResult
from rezone.wire.transport.channel import Frame

DEADLINE_SECONDS = 5.0


class Channel:
    """A channel in memory; `frames` is what the node sends, None its end."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.calls: list[str] = []
        self.senders: list[threading.Thread] = []
        self.messages: list[Message] = []
        self.sent = threading.Event()
        self.closed = threading.Event()
        self.fails = False

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """Note it."""
        del body
        if self.fails:
            raise OSError("the connection is reset")
        self.calls.append("send")
        self.messages.append(message)
        self.senders.append(threading.current_thread())
        self.sent.set()

    def receive(self) -> Frame | None:
        """Return what the node sent."""
        return self.frames.get()

    def cancel(self) -> None:
        """Let `receive` end."""
        self.calls.append("cancel")
        self.frames.put(None)

    def close(self) -> None:
        """Note it."""
        self.calls.append("close")
        self.closed.set()


def test_a_channel_that_is_wanted_is_opened_before_there_is_a_request() -> None:
    """The first request to the next leader of a partition would wait for it."""
    channel, opened = Channel(), queue.SimpleQueue[str]()

    def open_channel() -> Channel:
        opened.put("opened")
        return channel

    connection = Connection(
        "node:1",
        open_channel,
        on_frame=lambda _: None,
        on_broken=lambda opaques, _: pytest.fail(f"{opaques} are lost"),
        window=4,
    )
    connection.open()
    assert opened.get(timeout=DEADLINE_SECONDS) == "opened"
    connection.open()
    connection.send(7, Ack(), b"")
    assert channel.sent.wait(DEADLINE_SECONDS)
    assert opened.empty(), "opened twice"
    connection.close()


def test_an_answer_wakes_the_sender_only_for_a_request_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread would wake up with each answer for nothing, or a full window would stay full."""
    channel = Channel()
    connection = Connection(
        "node:1",
        lambda: channel,
        on_frame=lambda _: None,
        on_broken=lambda opaques, _: pytest.fail(f"{opaques} are lost"),
        window=1,
    )
    connection.send(7, Ack(), b"")
    assert channel.sent.wait(DEADLINE_SECONDS)
    channel.sent.clear()
    connection.send(8, Ack(), b"")
    assert channel.calls == ["send"], "more than the window on their way"
    wake = connection._state.notify_all
    woken: list[int] = []

    def notify_all() -> None:
        woken.append(len(channel.calls))
        wake()

    with monkeypatch.context() as patch:
        patch.setattr(connection._state, "notify_all", notify_all)
        connection.answered(7)
        assert channel.sent.wait(DEADLINE_SECONDS), "the freed place is not used"
        connection.answered(8)
        assert woken == [1], "once, for the request that waited"
    connection.close()


def pushed(connection: Connection, opaque: int, size: int) -> None:
    """Send a read as a caller does: it queues the request, then pushes."""
    request = ReadRequest(opaque=opaque, partition=0)
    connection.send(opaque, request, bytes(size), tell=False)
    connection.push()


def opened(channel: Channel) -> Connection:
    """Return a connection that has sent one request by its own thread, and read the answer."""
    connection = Connection(
        "node:1",
        lambda: channel,
        on_frame=lambda frame: connection.answered(frame[0].opaque),  # type: ignore[attr-defined]
        on_broken=lambda opaques, _: pytest.fail(f"{opaques} are lost"),
        window=100,
    )
    connection.send(1, ReadRequest(opaque=1, partition=0), b"")
    assert channel.sent.wait(DEADLINE_SECONDS)
    answer(connection, channel, 1)
    channel.sent.clear()
    return connection


def answer(connection: Connection, channel: Channel, opaque: int) -> None:
    """Have the node answer a request, and the connection read that."""
    before = connection.received
    channel.frames.put((ReadResult(opaque=opaque, rows=0), memoryview(b"")))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while connection.received == before or opaque in connection._in_flight:
        assert time.monotonic() < deadline, "the answer was not read"


def until_sent(channel: Channel, count: int) -> None:
    """Wait until so many requests were sent."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(channel.senders) < count:
        assert time.monotonic() < deadline, f"only {len(channel.senders)} were sent"


def test_a_thread_sends_its_request_until_much_is_unanswered() -> None:
    """A caller, or the thread that reads answers, would wait for a node that reads nothing.

    Without the push each request wakes the sender's thread.
    """
    channel, me = Channel(), threading.current_thread()
    connection = opened(channel)
    most = PUSH_BYTES_MAX - HEADER_BYTES
    pushed(connection, 2, most)
    assert channel.senders[1:] == [me]
    pushed(connection, 3, 0)
    assert channel.sent.wait(DEADLINE_SECONDS)
    until_sent(channel, 3)
    assert channel.senders[2] is not me, "more than fits is unanswered"
    answer(connection, channel, 2)
    pushed(connection, 4, most - HEADER_BYTES)
    assert channel.senders[3] is me, "the answer was not counted"
    connection.close()


def test_a_request_that_was_given_up_may_be_unread() -> None:
    """Nobody knows that the node has read it: a thread that counted on it could block."""
    channel, me = Channel(), threading.current_thread()
    connection = opened(channel)
    pushed(connection, 2, PUSH_BYTES_MAX - HEADER_BYTES)
    connection.answered(2)  # its time is over
    pushed(connection, 3, 0)
    until_sent(channel, 3)
    assert channel.senders[2] is not me
    connection.close()


def test_reads_and_writes_tell_how_many_answers_were_read() -> None:
    """The node lends no thread for answers of which it does not know that the client reads them."""
    channel = Channel()
    connection = opened(channel)
    pushed(connection, 2, 0)
    told = [each.answers_seen for each in channel.messages if isinstance(each, ReadRequest)]
    assert told == [0, 1]
    connection.close()


def test_a_push_that_fails_hands_its_request_back() -> None:
    """The request would wait until its deadline; within `submit` nothing may end it."""
    channel = Channel()
    lost: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    connection = Connection(
        "node:1",
        lambda: channel,
        on_frame=lambda frame: connection.answered(frame[0].opaque),  # type: ignore[attr-defined]
        on_broken=lambda opaques, _: lost.put(opaques),
        window=4,
    )
    connection.send(1, ReadRequest(opaque=1, partition=0), b"")
    assert channel.sent.wait(DEADLINE_SECONDS)
    answer(connection, channel, 1)
    channel.fails = True
    pushed(connection, 2, 0)
    assert lost.get(timeout=DEADLINE_SECONDS) == [2]
    connection.close()


@pytest.mark.parametrize("frame", [None, (ConnectionClosed(reason="stopping"), memoryview(b""))])
def test_a_channel_that_ends_is_closed_and_its_requests_are_handed_back(
    frame: Frame | None,
) -> None:
    """Writes would wait for a node that has said goodbye; Arrow would warn of each lost stream."""
    channel = Channel()
    lost: queue.SimpleQueue[tuple[list[int], RezoneError]] = queue.SimpleQueue()
    connection = Connection(
        "node:1",
        lambda: channel,
        on_frame=lambda _: pytest.fail("no answer was sent"),
        on_broken=lambda opaques, error: lost.put((opaques, error)),
        window=4,
    )
    connection.send(7, Ack(), b"")
    assert channel.sent.wait(DEADLINE_SECONDS)
    channel.frames.put(frame)
    opaques, error = lost.get(timeout=DEADLINE_SECONDS)
    assert opaques == [7]
    assert error.details.get("unreachable")
    if frame is not None:
        assert "stopping" in str(error)
    connection.close()
    assert channel.closed.wait(DEADLINE_SECONDS)
    assert channel.calls == ["send", "cancel", "close"]
