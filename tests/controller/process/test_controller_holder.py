"""Whether the process that holds the Lease is there: asked over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rezone.controller.process import holder
from rezone.controller.process.health import HealthServer
from rezone.controller.process.holder import address_of, answers
from rezone.local.controlplane import free_ports

HOST = "127.0.0.1"


@pytest.fixture
def address() -> str:
    """Give an address at which nobody listens."""
    (port,) = free_ports(1)
    return address_of(HOST, port)


@contextlib.asynccontextmanager
async def listening(address: str, *, hangs_up: bool) -> AsyncIterator[None]:
    """Accept connections at an address, and say nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not hangs_up:
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    host, _, port = address.rpartition(":")
    async with await asyncio.start_server(serve, host, int(port)):
        yield
        await ended.wait()


@pytest.mark.parametrize("ready", [False, True])
async def test_a_process_that_serves_its_health_is_there(address: str, ready: bool) -> None:
    """One that has just begun to lead would be taken for lost."""
    server = HealthServer(HOST, int(address.rpartition(":")[2]), lambda: ready)
    await server.start()
    try:
        assert await answers(address)
    finally:
        await server.stop()


@pytest.mark.proves("B-06")
async def test_an_address_where_nobody_listens_is_silent(address: str) -> None:
    """A machine that is lost, or a process that is gone, would be waited for."""
    assert not await answers(address)


@pytest.mark.proves("B-06")
async def test_a_process_that_is_frozen_is_silent(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel accepts connections for it."""
    monkeypatch.setattr(holder, "ASK_SECONDS", 0.05)
    async with listening(address, hangs_up=False):
        assert not await answers(address)


async def test_a_process_that_hangs_up_is_there(address: str) -> None:
    """It has too many connections, and leads."""
    async with listening(address, hangs_up=True):
        assert await answers(address)


@pytest.mark.parametrize(
    "text",
    [
        *("", "rezone.dev", "rezone.dev:80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:1/.."),
        *("[::1:8080", "127.0.0.1:65536", f"127.0.0.1:{'9' * 5000}"),
    ],
    ids=range(9),
)
async def test_what_is_no_address_is_not_asked(text: str) -> None:
    """Who may write the Lease would have operators call whatever they like."""
    assert await answers(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.7", "10.0.0.7:8080"), ("fd00::7", "[fd00::7]:8080"), ("0.0.0.0", ""), ("::", "")],  # noqa: S104
)
def test_only_an_address_of_its_own_is_said(host: str, expected: str) -> None:
    """Who waits would ask itself, and find the lost one well."""
    assert address_of(host, 8080) == expected
    assert address_of("localhost", 8080) == ""
