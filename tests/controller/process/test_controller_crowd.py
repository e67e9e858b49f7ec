"""The operator's process among clients that do not mean well, while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from operator_process import OperatorProcess
from test_controller_port import connections, is_ended, status_of

from rezone.controller.process.bounded_server import CONNECTIONS_MAX

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.proves("TR-03"),
]

NAMESPACE = "crowded"
STRANGERS = "127.0.0.2"
CROWD = 300
FLOOD = b"GET /metrics HTTP/1.1\r\nHost: x\r\nA: %s\r\n\r\n" % (b"a" * 4000) * 256
"""A megabyte of requests, of which a connection may have one."""
MEMORY_BYTES = 64 << 20
OWN_DESCRIPTORS = 16
"""What the operator may open for itself meanwhile: connections to the API server."""
LISTENING = "0A"


def home_of(operator: OperatorProcess) -> Path:
    """Return what the kernel tells of the process."""
    return Path(f"/proc/{operator.pid}")


def descriptors(operator: OperatorProcess) -> int:
    """Return how many the process has."""
    return len(list((home_of(operator) / "fd").iterdir()))


def resident_bytes(operator: OperatorProcess) -> int:
    """Return its memory."""
    lines = (home_of(operator) / "status").read_text().splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("VmRSS")]
    return int(kib) << 10


def listening_ports(operator: OperatorProcess) -> set[int]:
    """Return the ports at which the process can be reached."""
    home, found = home_of(operator), set()
    links = set()
    for each in (home / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed since
            links.add(str(each.readlink()))
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in (home / "net" / kind).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in links and (state == LISTENING or kind.startswith("udp")):
                found.add(int(local.rpartition(":")[2], 16))
    return found


async def test_the_operator_has_one_port(operator: OperatorProcess) -> None:
    """Asserts that nothing listens but the port of probes and metrics, whose limits are tested.

    Without it a library could open another one (as Kopf's liveness endpoint) that has none.
    """
    await operator.until_ready()
    assert listening_ports(operator) == {operator.port}


async def test_a_crowd_takes_few_descriptors_and_keeps_no_probe_out(
    operator: OperatorProcess,
) -> None:
    """Asserts that probes are answered while the process that leads keeps few connections.

    Idle ones, slow headers, halves, and floods of requests behind an answer that is not read.
    Without it the kubelet restarts the leader, or its memory or descriptors end.
    """
    await operator.until_ready()
    before, memory = descriptors(operator), resident_bytes(operator)
    loop = asyncio.get_running_loop()
    async with (
        connections(operator.port, CROWD, source=STRANGERS) as idle,
        connections(operator.port, CONNECTIONS_MAX, source=STRANGERS) as rude,
    ):
        slow, halves, floods = rude[:8], rude[8:16], rude[16:]
        for one in [*slow, *halves]:
            await said(one, b"GET /metrics HTTP/1.1\r\nHost:")
        for one in halves:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_WR)
        flooding = [loop.create_task(said(one, FLOOD * 16)) for one in floods]
        for path in ("/healthz", "/readyz", "/metrics", "/stacks") * 4:
            assert await status_of(operator.port, path) == 200
        assert descriptors(operator) <= before + CONNECTIONS_MAX + OWN_DESCRIPTORS
        for one in [*idle[:CROWD], *halves]:
            assert await is_ended(one)
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        assert resident_bytes(operator) < memory + MEMORY_BYTES
    assert await status_of(operator.port, "/readyz") == 200
    assert not operator.ended, "it has lost its Lease"


async def test_who_is_slow_is_cut_off_by_the_process(operator: OperatorProcess) -> None:
    """Asserts that connections of few end as well, a byte now and then or not.

    Without it they stay for as long as they like, as nobody takes their place.
    """
    await operator.until_ready()
    async with connections(operator.port, 2, source=STRANGERS) as few:
        for one in few:
            await said(one, b"GET /healthz HTTP/1.1\r\nHost:")
        for one in few:
            assert await is_ended(one)


async def said(connection: socket.socket, data: bytes) -> None:
    """Send it, unless the other side has ended the connection."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(connection, data)
