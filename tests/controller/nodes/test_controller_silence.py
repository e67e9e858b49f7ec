"""What the operator does with connections on which nothing comes any more."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from rezone.controller.process import handlers
from rezone.controller.process.handlers import KopfThread, build_registry
from rezone.controller.process.health import HealthServer
from rezone.controller.work.keys import ObjectKey
from rezone.local.controlplane import free_ports

DEADLINE_SECONDS = 20.0


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Return a server that lets everybody connect and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE_SECONDS)
        yield listening


def wake(key: ObjectKey, version: str = "", *, gone: bool = False) -> None:
    """Do nothing: nothing is heard."""
    del key, version, gone


@pytest.mark.proves("NW-01")
def test_a_list_that_is_not_answered_is_asked_again(
    silent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator would see nothing of its objects' changes for five minutes after a cut."""
    monkeypatch.setattr(handlers, "REQUEST_SECONDS", 0.2)
    file = tmp_path / "kubeconfig"
    server = f"http://127.0.0.1:{silent.getsockname()[1]}"
    file.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    ended = threading.Event()
    watching = KopfThread(
        build_registry(wake, lambda: None),
        namespaces=("default",),
        failed=lambda _: ended.set(),
    )
    watching.start()
    asked: list[socket.socket] = []
    try:
        lines: list[bytes] = []
        while len(lines) == len(set(lines)):
            asked.append(silent.accept()[0])
            lines.append(asked[-1].recv(1 << 16).split(b"\r\n")[0])
    finally:
        watching.stop(DEADLINE_SECONDS)
        for connection in asked:
            connection.close()
    assert not ended.is_set()


@pytest.mark.proves("OB-07")
async def test_the_operator_says_what_its_tasks_wait_for() -> None:
    """Who helps with an operator that stands still would not see what it waits for."""
    (port,) = free_ports(1)
    server = HealthServer("127.0.0.1", port, lambda: True)
    await server.start()
    stuck = asyncio.create_task(asyncio.Event().wait(), name="stands still")
    try:
        url = f"http://127.0.0.1:{port}/stacks"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            told = await answer.text()
    finally:
        stuck.cancel()
        await server.stop()
    (stack,) = (part for part in told.split("\n\n") if part.startswith("stands still\n"))
    assert stack.rstrip().endswith(" wait")
