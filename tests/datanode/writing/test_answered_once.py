"""Each request of a data channel has one answer, whatever happens while it is carried out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from besieged_node import row, write_request
from replica_cluster import batch_of
from secure_cluster import SecureCoordinator, of_zone, secure_cluster

from rezone.datanode.node import data
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.messages import Failure, Heartbeat, Message, ReadRequest, WriteResult
from rezone.wire.transport.channel import Channel
from rezone.wire.transport.identity import Role

P = 0
KEYS = to_ipc(batch_of({b"a": b""}).select([0]))


@pytest.fixture
def c(tmp_path: Path) -> Iterator[SecureCoordinator]:
    """Make a partition on one node that speaks TLS."""
    with secure_cluster(tmp_path, 1) as made:
        made.create(P, (0,))
        made.until("it leads", lambda: made.replica(0).leads)
        yield made


@pytest.fixture
def channel(c: SecureCoordinator) -> Iterator[Channel]:
    """Open a data channel that is cut off when an answer does not come."""
    client = c.as_(of_zone(Role.WRITER))
    opened = client.channel("data")
    watchdog = threading.Timer(30, opened.cancel)
    watchdog.start()
    yield opened
    watchdog.cancel()
    opened.close()
    client.close()


def answers(channel: Channel, opaque: int) -> list[Message]:
    """Return all answers so far, and end the channel's turn with a heartbeat that is echoed."""
    channel.send(Heartbeat())
    found: list[Message] = []
    while (frame := channel.receive()) is not None:
        if isinstance(frame[0], Heartbeat):
            break
        if getattr(frame[0], "opaque", None) == opaque:
            found.append(frame[0])
    return found


def one_failure(found: list[Message]) -> str:
    """Return what the one answer says, which must be a failure."""
    (answer,) = found
    assert isinstance(answer, Failure)
    return answer.error.message


@pytest.mark.proves("TR-03")
def test_an_exception_is_answered_while_others_are(
    c: SecureCoordinator, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request would wait for ever whose exception comes as another one of them is answered."""
    held = threading.Event()
    queue = c.replica(0).reads
    submit = queue.submit
    late: list[threading.Thread] = []

    def submit_late(*args: Any) -> None:
        def later() -> None:
            held.wait(30)
            submit(*args)

        late.append(threading.Thread(target=later))
        late[-1].start()

    def broken(*_: Any) -> None:
        held.set()
        late[0].join(30)
        raise ZeroDivisionError

    monkeypatch.setattr(queue, "submit", submit_late)
    channel.send(ReadRequest(opaque=1, partition=P), KEYS)
    c.until("the first waits", lambda: late)
    monkeypatch.setattr(data, "prepare_read", broken)
    channel.send(ReadRequest(opaque=2, partition=P), KEYS)
    assert "internal error" in one_failure(answers(channel, 2))


@pytest.mark.proves("TR-03")
def test_an_exception_after_the_wait_is_answered(
    c: SecureCoordinator, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who answers later than the request was taken has nobody behind it that would answer."""
    queue = c.replica(0).reads
    submit = queue.submit

    def submit_late(*args: Any) -> None:
        threading.Thread(target=submit, args=args).start()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(queue, "submit", submit_late)
    monkeypatch.setattr(data, "read_keys", broken)
    channel.send(ReadRequest(opaque=1, partition=P), KEYS)
    frame = channel.receive()
    assert frame is not None
    assert "internal error" in one_failure([frame[0]])


@pytest.mark.proves("TR-03")
def test_a_second_answer_is_dropped_and_counted(
    c: SecureCoordinator, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client would take the second for that of another request, or of none."""
    replica = c.replica(0)
    write = replica.write

    def twice(request: Any, prepared: Any, reply: Any, **options: Any) -> None:
        done = threading.Event()

        def answered(outcome: Any) -> None:
            reply(outcome)
            done.set()

        write(request, prepared, answered, **options)
        assert done.wait(30)
        raise ZeroDivisionError

    monkeypatch.setattr(replica, "write", twice)
    before = UNEXPECTED.total
    channel.send(write_request(1), row())
    (answer,) = answers(channel, 1)
    assert isinstance(answer, WriteResult)
    assert UNEXPECTED.total > before
    assert c.node(0).foreground.under_way == 0
