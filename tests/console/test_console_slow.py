"""Connections of the console's page that do not ask: none keeps its place for long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from rezone.console.app import Console
from rezone.console.process.protocol import DeadlineProtocol
from rezone.console.process.server import ADDRESS, CONNECTIONS_MAX, ConsoleServer, listen

pytestmark = pytest.mark.proves("TR-03")

WAIT_SECONDS = 60
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answers(Console):
    """Answers a form at /form, and streams at /stream until `ended` is set."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[Route("/form", self.form, methods=["POST"]), Route("/stream", self.stream)]
        )

    def close_streams(self) -> None:
        """End the streams."""
        self.ended.set()

    async def form(self, request: Request) -> Response:
        """Read the whole form."""
        return PlainTextResponse(await request.body())

    async def stream(self, _: Request) -> Response:
        """Send something at once, and the end when it is told to."""

        async def parts() -> AsyncIterator[str]:
            yield "begun"
            await self.ended.wait()
            yield "ended"

        return StreamingResponse(parts())


@pytest.fixture
async def console(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Answers, int]]:
    """Serve with a short deadline; return what answers, and its port."""
    monkeypatch.setattr(DeadlineProtocol, "request_seconds", 1.0)
    answers = Answers()
    with listen(0) as listener:
        server = ConsoleServer(answers)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield answers, listener.getsockname()[1]
        server.should_exit = True
        await asyncio.wait_for(serving, WAIT_SECONDS)


async def opened(port: int, stack: contextlib.AsyncExitStack) -> Connection:
    """Open a connection, to be closed with the test."""
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    stack.callback(writer.close)
    return reader, writer


async def cut_off(reader: asyncio.StreamReader) -> bytes:
    """Return what came before the other side ended the connection."""
    came = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(1_000):
            came += part
    return came


async def test_who_does_not_ask_is_cut_off(console: tuple[Answers, int]) -> None:
    """Asserts an end for connections without a request, and an answer for who asks then.

    Without a deadline the console's connections would all be taken, and its page be gone.
    """
    _, port = console
    async with asyncio.timeout(WAIT_SECONDS), contextlib.AsyncExitStack() as stack:
        idle = [await opened(port, stack) for _ in range(CONNECTIONS_MAX)]
        assert [await cut_off(reader) for reader, _ in idle] == [b""] * CONNECTIONS_MAX
        reader, writer = await opened(port, stack)
        writer.write(b"POST /form HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
        assert (await reader.readline()).split()[1] == b"200"


@pytest.mark.parametrize(
    "begun",
    [b"GET / HTTP/1.1\r\nA: ", b"POST /form HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n"],
)
@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_who_sends_a_byte_now_and_then_is_cut_off(
    console: tuple[Answers, int], begun: bytes, before: bytes
) -> None:
    """Asserts that bytes put off no end: of headers, of a body, also behind another request."""
    _, port = console
    async with asyncio.timeout(WAIT_SECONDS), contextlib.AsyncExitStack() as stack:
        reader, writer = await opened(port, stack)
        writer.write(before + begun)
        ended = asyncio.create_task(cut_off(reader))
        while not ended.done():
            writer.write(b"a")
            await asyncio.wait({ended}, timeout=0.05)
        came = ended.result()
        assert came.startswith(b"HTTP/1.1 404") if before else came == b""


async def test_a_stream_outlives_the_deadline_of_requests(console: tuple[Answers, int]) -> None:
    """Asserts that a page which is looked at stays live: its request has come as a whole."""
    answers, port = console
    async with asyncio.timeout(WAIT_SECONDS), contextlib.AsyncExitStack() as stack:
        reader, writer = await opened(port, stack)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"begun")
        later, _ = await opened(port, stack)
        assert await cut_off(later) == b""
        answers.ended.set()
        await reader.readuntil(b"ended")
        writer.write(b"GET ")  # what comes next has a deadline again
        await cut_off(reader)
