"""The operator's port beside who connects to it and does not mean well."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from rezone.controller.process import bounded_server
from rezone.controller.process.bounded_server import CONNECTIONS_MAX, surplus
from rezone.controller.process.health import HealthServer
from rezone.local.controlplane import free_ports

pytestmark = pytest.mark.proves("TR-03")

IDLE = 300
DEADLINE_SECONDS = 60.0


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Serve an operator's health; return the port."""
    (number,) = free_ports(1)
    server = HealthServer("127.0.0.1", number, lambda: True)
    await server.start()
    yield number
    await server.stop()


@contextlib.asynccontextmanager
async def connections(
    port: int, count: int, *, source: str = "127.0.0.1"
) -> AsyncIterator[list[socket.socket]]:
    """Connect from an address of this machine, and say nothing."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in made:
            each.settimeout(0)
            each.bind((source, 0))
            await loop.sock_connect(each, ("127.0.0.1", port))
        yield made


async def status_of(port: int, path: str, method: str = "GET") -> int:
    """Ask once, on a connection of its own."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as answer,
    ):
        await answer.read()
        return answer.status


async def is_ended(connection: socket.socket) -> bool:
    """Wait until the other side has ended it; whether it has."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await loop.sock_recv(connection, 1000):
                pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


async def test_hundreds_of_idle_connections_keep_no_probe_out(port: int) -> None:
    """The kubelet would restart the leader, or its descriptors be used up."""
    async with connections(port, IDLE) as idle:
        for path in ("/healthz", "/readyz", "/metrics", "/stacks"):
            assert await status_of(port, path) == 200
        # One by one: what a probe has taken the place of is ended as well.
        for one in idle[: IDLE - CONNECTIONS_MAX]:
            assert await is_ended(one)
        assert await status_of(port, "/healthz") == 200


async def test_who_has_few_connections_stays_beside_who_has_many(port: int) -> None:
    """One address would end the probes and scrapes of all others by connecting again and again."""
    async with connections(port, 2, source="127.0.0.2") as few, connections(port, IDLE):
        assert await status_of(port, "/healthz") == 200
        loop = asyncio.get_running_loop()
        for one in few:
            await loop.sock_sendall(one, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await loop.sock_recv(one, 100)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /met",
        b"GET /metrics HTTP/1.1\r\nHost:",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ],
)
async def test_a_request_that_comes_slowly_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """A byte now and then would hold a connection for ever."""
    monkeypatch.setattr(bounded_server.BoundedServer.__init__, "__kwdefaults__", QUICK)
    (number,) = free_ports(1)
    server = HealthServer("127.0.0.1", number, lambda: True)
    await server.start()
    try:
        async with connections(number, 1) as (slow,):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(slow, begun)
            assert await is_ended(slow)
        assert await status_of(number, "/healthz") == 200
    finally:
        await server.stop()


QUICK = {"connections_max": CONNECTIONS_MAX, "connection_seconds": 0.5}


@pytest.mark.parametrize(
    "request_text",
    [
        # Of pages that there are: what is read as a whole is answered with 200.
        b"GET /healthz?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"\x16\x03\x01\x00\xff" * 100,
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * 9000,
    ],
)
async def test_what_is_too_large_or_no_request_is_refused(port: int, request_text: bytes) -> None:
    """Headers and bodies would be kept in memory for as long as somebody sends."""
    loop = asyncio.get_running_loop()
    async with connections(port, 1) as (rude,):
        with contextlib.suppress(OSError):
            await loop.sock_sendall(rude, request_text)
            assert (await loop.sock_recv(rude, 100)).startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
        assert await is_ended(rude)
    assert await status_of(port, "/healthz") == 200
    assert await status_of(port, "/healthz", "PUT") == 405
    assert await status_of(port, "/etc/passwd") == 404


async def test_a_connection_is_for_one_request(port: int) -> None:
    """One that stays could ask for all metrics again and again, of the loop that leads."""
    loop = asyncio.get_running_loop()
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with connections(port, 1) as (one,):
        await loop.sock_sendall(one, ask * 3)
        text = b""
        with contextlib.suppress(OSError):
            while more := await loop.sock_recv(one, 1000):
                text += more
        assert text.count(b"HTTP/1.1 200") == 1


async def test_metrics_are_not_made_for_each_who_asks(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made on the loop that leads: whoever asks often would stop it."""
    made: list[int] = []

    def counted() -> bytes:
        made.append(1)
        return b"metrics 1\n"

    monkeypatch.setattr("prometheus_client.generate_latest", counted)
    monkeypatch.setattr("rezone.controller.process.health.FRESH_SECONDS", 3600.0)
    assert [await status_of(port, "/metrics") for _ in range(20)] == [200] * 20
    assert len(made) == 1


def test_the_oldest_of_the_address_with_most_is_ended() -> None:
    """The newest may be an honest one's, and who has few is not to blame."""
    assert surplus({1: "a", 2: "b", 3: "b", 4: "a", 5: "b"}) == 2
