"""The account of what connections have sent and no call has taken."""

from __future__ import annotations

import socket

from rezone.datanode.service.intake import Intake
from rezone.wire.transport.callers import Callers, Passed

MAX = 1 << 20
HTTP_BYTES = 60
"""What frames of HTTP/2 and TLS are around a small message, about."""


def test_who_has_sent_most_of_what_was_not_taken_goes() -> None:
    """Others would be cut off for it, or all memory be used."""
    intake = Intake(MAX)
    took = intake.taken("busy")
    took(10 * MAX)
    passed = {"idle": 0, "little": MAX // 4, "busy": 10 * MAX, "most": 2 * MAX}
    at = {address: Passed(size, 0) for address, size in passed.items()}
    assert list(intake.count(at, 0.0)) == ["most"]
    del at["most"]
    assert not list(intake.count(at, 0.1)), "those who stay are within the limit"


def test_small_messages_and_reads_add_up_to_nothing() -> None:
    """A connection is cut off after a day otherwise: frames and windows are no messages."""
    intake = Intake(MAX)
    took = intake.taken("busy")
    received = sent = 0
    for second in range(1000):
        for _ in range(100):
            took(100)
            received += 100 + HTTP_BYTES
        sent += 100 << 20
        received += (100 << 20) // (32 << 10) * HTTP_BYTES  # it opens its window for what it reads
        assert not list(intake.count({"busy": Passed(received, sent)}, float(second)))


def test_an_account_ends_with_its_connection() -> None:
    """An address is used again: the next connection would begin with what another has sent."""
    intake = Intake(MAX)
    assert not list(intake.count({"a": Passed(MAX, 0)}, 0.0))
    assert not list(intake.count({}, 1.0))
    assert not list(intake.count({"a": Passed(MAX, 0)}, 2.0))


def test_the_kernel_tells_what_has_passed() -> None:
    """What has come and was not read is not in this process yet; the rest is counted both ways."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            with accepted:
                callers = Callers(port)
                host, own = client.getsockname()
                client.sendall(bytes(5000))
                taken = len(accepted.recv(1000, socket.MSG_WAITALL))
                accepted.sendall(bytes(300))
                assert len(client.recv(300, socket.MSG_WAITALL)) == 300
                callers.look()
                found = callers.passed()[f"{host}:{own}"]
                assert (found.received, found.sent) == (taken, 300)
                assert callers.memory() > 1 << 20
                callers.close()
