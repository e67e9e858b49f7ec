"""Single probes against real sockets, and what follows from their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rezone.local.agent.environment import Invocation
from rezone.local.agent.probes import ProbeHandlers, ProbeTarget, check, run_probes

CONTAINER: dict[str, Any] = {"name": "c", "ports": [{"name": "web", "containerPort": 1}]}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Serve HTTP: 200 for /ok, 500 for everything else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readline()
        status = b"200 OK" if b" /ok " in request else b"500 No"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def target(tmp_path: Path, container: dict[str, Any] | None = None) -> ProbeTarget:
    """Return where probes go."""
    invocation = Invocation(("x",), {"PATH": "/bin:/usr/bin", "WORD": "here"}, tmp_path)
    return ProbeTarget(container or CONTAINER, "127.0.0.1", invocation)


async def test_http_probe(tmp_path: Path, port: int) -> None:
    """A status of 500 taken for success would send traffic to a broken node."""
    good = {"httpGet": {"port": port, "path": "/ok"}}
    bad = {"httpGet": {"port": port, "path": "/no"}}
    assert await check(target(tmp_path), good) is None
    assert await check(target(tmp_path), bad) == "HTTP probe failed with statuscode: 500"


async def test_tcp_probe(tmp_path: Path, port: int) -> None:
    """An open port is a success, a closed one tells why not; a port's name is looked up."""
    assert await check(target(tmp_path), {"tcpSocket": {"port": port}}) is None
    named = {**CONTAINER, "ports": [{"name": "web", "containerPort": port}]}
    assert await check(target(tmp_path, named), {"tcpSocket": {"port": "web"}}) is None
    assert await check(target(tmp_path), {"tcpSocket": {"port": 1}})


async def test_exec_probe_runs_in_the_containers_environment(tmp_path: Path) -> None:
    """A probe with other variables than the container looks at something else."""
    words = ["sh", "-c", 'test "$WORD" = here']
    assert await check(target(tmp_path), {"exec": {"command": words}}) is None
    failed = await check(target(tmp_path), {"exec": {"command": ["sh", "-c", "echo no; exit 4"]}})
    assert failed == "exit code 4: no\n"


async def test_slow_probe_fails_and_is_killed(tmp_path: Path) -> None:
    """A hanging probe would stop all further ones, and pile up processes."""
    probe = {"exec": {"command": ["sleep", "60"]}, "timeoutSeconds": 0.05}
    assert await check(target(tmp_path), probe) == "no answer in 0.05 s"


async def test_startup_probe_holds_the_others_back(tmp_path: Path) -> None:
    """Liveness before the start is over would kill every slow starter for ever."""
    log: list[str] = []
    handlers = ProbeHandlers(
        started=lambda: log.append("started"),
        ready=lambda value: log.append(f"ready {value}"),
        unhealthy=lambda kind, _message: log.append(kind),
        restart=lambda _message: log.append("restart"),
    )
    started = {"exec": {"command": ["test", "-e", "up"]}}
    fails = {"exec": {"command": ["false"]}, "failureThreshold": 1}
    container = {**CONTAINER, "startupProbe": {**started, "failureThreshold": 1}}
    await run_probes(target(tmp_path, container), handlers)
    assert log == ["Startup", "restart"]
    log.clear()
    (tmp_path / "up").touch()
    container |= {"startupProbe": started, "livenessProbe": fails}
    await run_probes(target(tmp_path, container), handlers)
    assert log == ["started", "ready True", "Liveness", "restart"]
