"""Requests that wait hold memory: so much for each connection, identity and node, and no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from besieged_node import Besieged, P, besieged_node
from replica_cluster import batch_of
from secure_cluster import of_zone

from rezone.wire.codec.bodies import to_ipc
from rezone.wire.errors import OverloadedError
from rezone.wire.messages import Failure, Heartbeat, ReadRequest
from rezone.wire.transport.channel import Channel
from rezone.wire.transport.identity import Role

KEYS = to_ipc(batch_of({b"%0100d" % number: b"" for number in range(550)}).select([0]))
"""About 58 KB."""

LIMITS = {
    "requests_bytes_connection_max": "100000",
    "requests_bytes_identity_max": "150000",
    "requests_bytes_node_max": "220000",
    "hold_ms_max": "60000",
}


@contextmanager
def channel_of(node: Besieged, role: Role) -> Iterator[Channel]:
    """Open a data channel that is cut off when nothing comes."""
    client = node.c.as_(of_zone(role))
    channel = client.channel("data")
    watchdog = threading.Timer(60, channel.cancel)
    watchdog.start()
    yield channel
    watchdog.cancel()
    channel.cancel()
    channel.close()
    client.close()


def is_held(channel: Channel, opaque: int) -> bool:
    """Read at a time that is yet to come; whether that waits, in place of being refused."""
    later = time.time_ns() // 1000 + 50_000_000
    channel.send(ReadRequest(opaque=opaque, partition=P, as_of=later), KEYS)
    channel.send(Heartbeat())
    frame = channel.receive()
    assert frame is not None
    if isinstance(frame[0], Heartbeat):
        return True
    assert isinstance(frame[0], Failure)
    assert frame[0].error.code == OverloadedError.code
    heartbeat = channel.receive()
    assert heartbeat is not None
    assert isinstance(heartbeat[0], Heartbeat)
    return False


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_what_waits_is_bounded_for_each_connection_identity_and_node(tmp_path: Path) -> None:
    """One certificate, or one connection, would take the memory that all others need."""
    with besieged_node(tmp_path, **LIMITS) as node, ExitStack() as stack:
        writers = [stack.enter_context(channel_of(node, Role.WRITER)) for _ in range(3)]
        admin, reader = (
            stack.enter_context(channel_of(node, role)) for role in (Role.ADMIN, Role.READER)
        )
        assert is_held(writers[0], 1)
        assert not is_held(writers[0], 2), "of a connection"
        assert is_held(writers[1], 1)
        assert not is_held(writers[2], 1), "of an identity"
        assert is_held(admin, 1)
        assert not is_held(reader, 1), "of the node"
        writers[0].cancel()
        until = time.monotonic() + 30
        while not is_held(reader, 2):
            assert time.monotonic() < until, "a connection that has ended holds on to it"
