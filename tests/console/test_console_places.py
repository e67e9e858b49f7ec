"""How many requests of one user the console answers at a time, behind a proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from rezone.console.access.proxied import REQUESTS_EACH_MAX, Proxied, ProxiedGuard
from rezone.console.process.server import CONNECTIONS_MAX

pytestmark = pytest.mark.proves("OB-03")


class Asking:
    """A guard before an application that answers when it is told to."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[None] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.guard = ProxiedGuard(self._app, proxied=Proxied("https://rezone.example.com"))

    async def _app(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.begun.put_nowait(None)
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def status(self, token: str) -> int:
        """Return the status of an answer to who has this token."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        headers = {"host": "rezone.example.com", "authorization": f"Bearer {token}"}
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await self.guard(scope, receive, send)
        return int(sent[0]["status"])


async def test_one_user_cannot_take_all_places() -> None:
    """A user, or their script, could keep the console from everybody else."""
    asking = Asking()
    async with asyncio.TaskGroup() as group:
        of_ann = [group.create_task(asking.status("ann")) for _ in range(REQUESTS_EACH_MAX)]
        for _ in of_ann:
            await asking.begun.get()
        assert await asking.status("ann") == 429
        bobs = group.create_task(asking.status("bob"))
        await asking.begun.get()
        asking.go_on.set()
    assert {task.result() for task in (*of_ann, bobs)} == {200}
    assert await asking.status("ann") == 200
    assert REQUESTS_EACH_MAX * 4 < CONNECTIONS_MAX


async def test_a_request_that_its_browser_gives_up_leaves_its_place() -> None:
    """A user who has reloaded a slow page often would be refused until the console ends."""
    asking = Asking()
    for _ in range(REQUESTS_EACH_MAX + 1):
        task = asyncio.create_task(asking.status("ann"))
        await asking.begun.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
