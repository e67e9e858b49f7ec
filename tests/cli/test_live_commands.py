"""The commands that show objects, on a real API server: in pipes and on a pseudo-terminal."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rezone.cli.main import main
from rezone.domain.routing import routes
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import ConfigMap
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import StatusStore
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

WAIT_SECONDS = 30.0
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


@pytest.fixture
async def shop(api: Kube, namespace: str) -> str:
    """Return a namespace with a zone of two partitions, its routes, and a task that copies."""
    store = StatusStore(api)
    spec = {"partitions": 2, "replicas": 2, "dataNodes": {"count": 2}}
    made = await store.create(
        DistributionZone.parse({"metadata": {"name": "z", "namespace": namespace}, "spec": spec})
    )
    nodes = [{"id": n, "podName": f"z-{n}", "state": "Active"} for n in (0, 1)]
    status = DistributionZoneStatus.model_validate({"dataNodes": nodes, "readyDataNodes": 2})
    made = await store.write_status(made, status)
    await RouteStore(api, made).create([routes.initial((0, 1), 1), routes.initial((1, 0), 1)])
    meta = {"name": "z-7", "namespace": namespace}
    await store.create(RebalanceTask.parse({"metadata": meta, "spec": {"zoneName": "z"}}))
    await advance(api, namespace, 4_000_000, "Copying: 1 (partition 0: from node 1)")
    return namespace


async def advance(api: Kube, namespace: str, done: int, waiting: str = "") -> None:
    """Play the operator: write how far the task is."""
    store = StatusStore(api)
    task = await store.read(RebalanceTask, namespace, "z-7")
    moved = {"bytesTotal": 8_000_000, "bytesDone": done, "movesTotal": 1}
    status = {"state": "Transferring", "progress": moved, "waitingFor": waiting}
    await store.write_status(task, RebalanceTaskStatus.model_validate(status))


def command(*arguments: str) -> list[str]:
    """Return the command line of `rezone`."""
    return [sys.executable, "-m", "rezone.cli.main", *arguments]


def environment(crds: Path, **more: str) -> dict[str, str]:
    """Return what the command gets; neither the caller's terminal nor its NO_COLOR."""
    kept = {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
    own = {"KUBECONFIG": str(crds), "PYTHONPATH": ":".join(sys.path), "TERM": "xterm-256color"}
    return {**kept, **own, **more}


async def run(crds: Path, *arguments: str) -> str:
    """Return what a command writes where there is no terminal; it runs a loop of its own."""
    runner = CliRunner(env={"KUBECONFIG": str(crds)})
    done = await asyncio.to_thread(runner.invoke, main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.proves("OB-04")
async def test_in_a_pipe_all_is_plain_or_a_document(crds: Path, shop: str) -> None:
    """A script would read escapes, or nothing that it can parse."""
    plain = await run(crds, "progress", "z", "-n", shop)
    assert plain == (
        "z-7: Transferring, moves 0/1, leaders 0/0, 0 of 0 rows, 4 of 8 MB, 0 MB/s, "
        "(Copying: 1 (partition 0: from node 1))\n"
    )
    listed = json.loads(await run(crds, "zones", "-n", shop, "-o", "json"))
    assert [(each["name"], each["dataNodes"]) for each in listed["items"]] == [("z", 2)]
    held = json.loads(await run(crds, "map", "z", "-n", shop, "-o", "json"))
    assert [each["leader"] for each in held["layouts"][0]["partitions"]] == [0, 1]
    load = json.loads(await run(crds, "top", "z", "-n", shop, "-o", "json"))
    assert [(each["leaders"], each["followers"]) for each in load["nodes"]] == [(1, 1), (1, 1)]
    assert [each["name"] for each in load["tasks"]] == ["z-7"]
    why = await run(crds, "explain-wait", "z-7", "-n", shop)
    assert "Needs: The copies arrive." in why


class Terminal:
    """A command on a pseudo-terminal of 100 columns."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.seen = b""
        self._master = master

    def until(self, wanted: bytes) -> None:
        """Read until something has been written; fail after a while."""
        deadline = time.monotonic() + WAIT_SECONDS
        while wanted not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} is not in {self.seen[-2000:]!r}"
            if select.select([self._master], [], [], left)[0] and not self._read():
                pytest.fail(f"ended without {wanted!r}: {self.seen[-2000:]!r}")

    def end(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            ready = select.select([self._master], [], [], 0.2)[0]
            if not ready and self.process.poll() is not None:
                break
            if ready and not self._read():
                break
        return self.process.wait(WAIT_SECONDS)

    def press(self, key: bytes) -> None:
        """Type something."""
        os.write(self._master, key)

    def _read(self) -> bytes:
        try:
            found = os.read(self._master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            found = b""  # what Linux answers when nobody has the terminal open any more
        self.seen += found
        return found


@contextmanager
def terminal(crds: Path, *arguments: str, **more: str) -> Iterator[Terminal]:
    """Run a command on a pseudo-terminal that is its controlling one."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (30, 100))
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_TERMINAL, *arguments],
        env=environment(crds, **more),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Let the commands be interrupted: a job in the background of a shell hands down SIG_IGN."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def piped(
    crds: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], io.BufferedReader]]:
    """Run a command into a pipe."""
    process = subprocess.Popen(
        command(*arguments),
        env=environment(crds),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert isinstance(process.stdout, io.BufferedReader)
    try:
        yield process, process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# Ctrl-C reaches the process only from its controlling terminal.
_ON_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from rezone.cli.main import main
main(sys.argv[1:], prog_name="rezone")
"""


@pytest.mark.proves("OB-04")
async def test_a_live_view_follows_and_ends_by_ctrl_c(crds: Path, api: Kube, shop: str) -> None:
    """A rebalance would have to be asked for again and again, or leave a broken terminal."""
    with terminal(crds, "progress", "z", "-n", shop, "--watch") as shown:
        shown.until(b"50%")
        assert HIDDEN in shown.seen
        assert "━".encode() in shown.seen
        await advance(api, shop, 6_000_000)
        shown.until(b"75%")
        await advance(api, shop, 8_000_000)  # the first change may have come before the watch
        shown.until(b"100%")
        shown.press(b"\x03")
        assert shown.end() == 130
        assert b"Traceback" not in shown.seen
        assert shown.seen.rindex(SHOWN) > shown.seen.rindex(HIDDEN)


async def test_sigterm_restores_the_terminal(crds: Path, shop: str) -> None:
    """The cursor would be gone for whoever uses the terminal next."""
    with terminal(crds, "top", "z", "-n", shop, "-w", NO_COLOR="1") as shown:
        shown.until(b"LEADERS")
        assert b"\x1b[32m" not in shown.seen
        shown.process.send_signal(signal.SIGTERM)
        assert shown.end() == 143
        assert shown.seen.rindex(SHOWN) > shown.seen.rindex(HIDDEN)


async def test_a_view_of_a_zone_that_is_deleted_ends(crds: Path, api: Kube, shop: str) -> None:
    """It would show a zone for ever that is no more."""
    with terminal(crds, "map", "z", "-n", shop, "-w") as shown:
        shown.until(b"node 1")
        found = await StatusStore(api).read(DistributionZone, shop, "z")
        await StatusStore(api).delete(found)
        for each in await api.list(ConfigMap, shop):
            await api.delete(ConfigMap, shop, each["metadata"]["name"])
        assert shown.end() == 1
        assert b"not found" in shown.seen
        assert shown.seen.rindex(SHOWN) > shown.seen.rindex(HIDDEN)


async def test_a_watch_in_a_pipe_writes_a_document_for_each_state(
    crds: Path, api: Kube, shop: str
) -> None:
    """A program that follows a rebalance would get drawings, or half a document."""
    with piped(crds, "progress", "z", "-n", shop, "-w", "-o", "json") as (process, lines):
        first = json.loads(lines.readline())
        assert first["tasks"][0]["bytesDone"] == 4_000_000
        await advance(api, shop, 7_000_000)
        second = json.loads(lines.readline())
        assert second["tasks"][0]["bytesDone"] == 7_000_000
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
