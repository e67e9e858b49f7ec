"""Startup, readiness and liveness probes of a container that is a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from rezone.local.agent.environment import Invocation

_OK_FROM, _OK_BELOW = 200, 400
_OUTPUT_MAX = 500


class _RestartAskedError(Exception):
    """Ends the other probes of a container that is about to be restarted."""


@dataclass(frozen=True)
class ProbeTarget:
    """Where a container's probes go."""

    container: Mapping[str, Any]
    address: str
    invocation: Invocation


@dataclass(frozen=True)
class ProbeHandlers:
    """What follows from the probes; all are called from the event loop."""

    started: Callable[[], None]
    ready: Callable[[bool], None]
    unhealthy: Callable[[str, str], None]
    restart: Callable[[str], None]


async def run_probes(target: ProbeTarget, handlers: ProbeHandlers) -> None:
    """Probe until cancelled or a restart is asked for; without a probe all is well at once."""
    container = target.container
    startup = container.get("startupProbe")
    if startup and not await _until_started(target, startup, handlers):
        return
    handlers.started()
    try:
        async with asyncio.TaskGroup() as group:
            if "readinessProbe" in container:
                group.create_task(_readiness(target, container["readinessProbe"], handlers))
            else:
                handlers.ready(True)  # noqa: FBT003 - the handler's one argument is its meaning
            if "livenessProbe" in container:
                group.create_task(_liveness(target, container["livenessProbe"], handlers))
    except* _RestartAskedError:
        pass


async def _until_started(
    target: ProbeTarget, probe: Mapping[str, Any], handlers: ProbeHandlers
) -> bool:
    failures = 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while True:
        failure = await check(target, probe)
        if failure is None:
            return True
        failures += 1
        handlers.unhealthy("Startup", failure)
        if failures >= probe.get("failureThreshold", 3):
            handlers.restart(f"failed startup probe: {failure}")
            return False
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def _readiness(
    target: ProbeTarget, probe: Mapping[str, Any], handlers: ProbeHandlers
) -> None:
    successes = failures = 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while True:
        failure = await check(target, probe)
        successes, failures = (successes + 1, 0) if failure is None else (0, failures + 1)
        if successes >= probe.get("successThreshold", 1):
            handlers.ready(True)  # noqa: FBT003 - see run_probes
        elif failure is not None:
            handlers.unhealthy("Readiness", failure)
            if failures >= probe.get("failureThreshold", 3):
                handlers.ready(False)  # noqa: FBT003 - see run_probes
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def _liveness(target: ProbeTarget, probe: Mapping[str, Any], handlers: ProbeHandlers) -> None:
    failures = 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while True:
        failure = await check(target, probe)
        failures = 0 if failure is None else failures + 1
        if failure is not None:
            handlers.unhealthy("Liveness", failure)
        if failures >= probe.get("failureThreshold", 3):
            handlers.restart(f"failed liveness probe: {failure}")
            raise _RestartAskedError
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def check(target: ProbeTarget, probe: Mapping[str, Any]) -> str | None:
    """Probe once; return why it failed, None if it did not."""
    limit = float(probe.get("timeoutSeconds", 1))
    try:
        async with asyncio.timeout(limit):
            if "exec" in probe:
                return await run_exec(target.invocation, probe["exec"]["command"])
            if "httpGet" in probe:
                return await _http(target, probe["httpGet"])
            return await _tcp(target, probe.get("tcpSocket") or probe.get("grpc") or {})
    except TimeoutError:
        return f"no answer in {limit:g} s"
    except (OSError, aiohttp.ClientError, ValueError, KeyError) as error:
        return str(error) or repr(error)


async def run_exec(invocation: Invocation, command: list[str]) -> str | None:
    """Run a command in a container's environment; return its output if it fails, else None."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=invocation.directory,
        env=invocation.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode == 0:
        return None
    return f"exit code {process.returncode}: {output[-_OUTPUT_MAX:].decode(errors='replace')}"


async def _http(target: ProbeTarget, get: Mapping[str, Any]) -> str | None:
    scheme = get.get("scheme", "HTTP").lower()
    host = get.get("host") or target.address
    url = f"{scheme}://{host}:{_port(target, get['port'])}{get.get('path') or '/'}"
    headers = {item["name"]: item["value"] for item in get.get("httpHeaders", [])}
    # A kubelet does not verify certificates of probes either: it talks to an address, not to a
    # name.
    context = ssl._create_unverified_context() if scheme == "https" else True  # noqa: S323, SLF001
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=context, allow_redirects=False) as answer,
    ):
        if _OK_FROM <= answer.status < _OK_BELOW:
            return None
        return f"HTTP probe failed with statuscode: {answer.status}"


async def _tcp(target: ProbeTarget, socket: Mapping[str, Any]) -> str | None:
    host = socket.get("host") or target.address
    _, writer = await asyncio.open_connection(host, _port(target, socket["port"]))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None


def _port(target: ProbeTarget, port: int | str) -> int:
    """Return a port's number; a name is one of the container's ports."""
    for item in target.container.get("ports", []):
        if item.get("name") == port:
            return int(item["containerPort"])
    return int(port)
