"""One channel to one node: how it ends."""

from __future__ import annotations

import queue
import threading

import pytest

from rezone.client.connections.connection import Connection
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Ack, ConnectionClosed, Message
from rezone.wire.transport.channel import Frame

DEADLINE_SECONDS = 5.0


class Channel:
    """A channel in memory; `frames` is what the node sends, None its end."""

    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.calls: list[str] = []
        self.sent = threading.Event()
        self.closed = threading.Event()

    def send(self, message: Message, body: bytes | memoryview = b"") -> None:
        """Note it."""
        del message, body
        self.calls.append("send")
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
