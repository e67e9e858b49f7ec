"""The part of a kubelet's HTTPS endpoint that `kubectl logs` needs, at each node's own address."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from rezone.local.agent.pod import PodWorker
from rezone.local.certificates import CertificateAuthority

_CHUNK_BYTES = 65536
_FOLLOW_SECONDS = 0.2

FindPod = Callable[[str, str], PodWorker | None]


class KubeletServer:
    """Serves the logs of all pods; only holders of the cluster's certificates may read."""

    def __init__(self, authority: CertificateAuthority, find_pod: FindPod) -> None:
        self._authority = authority
        self._find_pod = find_pod
        self._runner: web.AppRunner | None = None
        self._sites: dict[str, web.TCPSite] = {}

    async def start(self) -> None:
        """Make the application; addresses are added by `listen`."""
        application = web.Application()
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await self._runner.setup()

    async def listen(self, address: str) -> int:
        """Listen at a node's address; return the port, which the system chooses."""
        if self._runner is None:
            raise RuntimeError("the server is not started")
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(self._authority.certificate_path)
        )
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(
            *self._authority.issue(f"node-{address}", common_name=address, hosts=[address])
        )
        site = web.TCPSite(self._runner, address, 0, ssl_context=context)
        await site.start()
        self._sites[address] = site
        server = site._server  # noqa: SLF001 - aiohttp tells a site's port in no other way
        sockets = server.sockets if isinstance(server, asyncio.Server) else ()
        return int(sockets[0].getsockname()[1])

    async def silence(self, address: str) -> None:
        """Stop listening at a node's address."""
        site = self._sites.pop(address, None)
        if site is not None:
            await site.stop()

    async def stop(self) -> None:
        """Close everything."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        match, query = request.match_info, request.query
        worker = self._find_pod(match["namespace"], match["pod"])
        if worker is None:
            raise web.HTTPNotFound(text=f'pod "{match["pod"]}" does not run here')
        previous = query.get("previous") == "true"
        path = worker.log_path(match["container"], previous=previous)
        if path is None:
            kind = "previous terminated container" if previous else "container"
            raise web.HTTPNotFound(text=f'{kind} "{match["container"]}" has no log')
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        tail = query.get("tailLines")
        start = _tail_offset(path, int(tail)) if tail is not None else 0
        limit = int(query.get("limitBytes", "0"))
        follow = query.get("follow") == "true" and not previous
        await _send(response, path, start, limit=limit, again=worker if follow else None)
        return response


async def _send(
    response: web.StreamResponse, path: Path, start: int, *, limit: int, again: PodWorker | None
) -> None:
    """Send a file, and with `again` what is appended to it until the worker is done."""
    offset = start
    while True:
        done = again is None or again.done
        while chunk := _read(path, offset, limit - (offset - start) if limit else _CHUNK_BYTES):
            offset += len(chunk)
            await response.write(chunk)
        if done or (limit and offset - start >= limit):
            return
        await asyncio.sleep(_FOLLOW_SECONDS)


def _read(path: Path, offset: int, size: int) -> bytes:
    try:
        with path.open("rb") as handle:
            handle.seek(offset)
            return handle.read(min(size, _CHUNK_BYTES))
    except FileNotFoundError:
        return b""


def _tail_offset(path: Path, lines: int) -> int:
    """Return where the last lines of a file begin."""
    with path.open("rb") as handle:
        kept: deque[int] = deque(maxlen=max(lines, 0))
        position = 0
        for line in handle:
            kept.append(position)
            position += len(line)
    return kept[0] if kept else position
