"""The operator as a process of its own: as users run it, and as it dies at a chosen point."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Self

from crash_points import CrashPoint
from operated_cluster import DEADLINE_SECONDS, ROOT, TestCluster, until

from loaded_process import LoadedProcess, load
from rezone.controller.process.main import EXIT_LEASE_LOST
from rezone.local.api import KubeApi
from rezone.local.controlplane import free_ports
from rezone.resources.migration import MigrationState
from rezone.resources.task import TaskState

EVERY_POINT = bool(os.environ.get("REZONE_SIMULATION_SEEDS"))
"""Whether operators die before and after each deed (`make chaos-operator`), or once in each."""
ONLY_AFTER = {MigrationState.CLOSE_OLD_LEADER}
"""A life that ends before it is stored is followed by one that may pass it without a word: it has
not heard of the old leader yet, and its zone stops what is left (RM-09)."""
_OPERATOR = "rezone.controller.process.main"
load(_OPERATOR)
DYING_OPERATOR = Path(__file__).with_name("dying_operator.py")
LOG_LINES = 15


def environment_of(cluster: TestCluster, namespace: str, port: int) -> dict[str, str]:
    """Return what an operator is told: one namespace, its kubeconfig, short leases."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "operator"),
        "KUBECONFIG": str(cluster.kubeconfig),
        "REZONE_NAMESPACES": namespace,
        "REZONE_LEASE_NAMESPACE": namespace,
        "REZONE_HEALTH_PORT": str(port),
        "REZONE_LEASE_DURATION_SECONDS": "3",
        "REZONE_LEADER_LEASE_SECONDS": "1",
    }


def end_of(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(line[:300] for line in log.read_text().splitlines()[-LOG_LINES:])


class OperatorProcess:
    """The operator as users run it, to be killed.

    A thread does the kubelet's part: an operator that ends by itself is started again. On a busy
    machine a Lease of a few seconds is lost now and then, which ends the process.
    """

    def __init__(
        self, cluster: TestCluster, namespace: str, logs: Path, **environment: str
    ) -> None:
        self._log = logs / "operator.log"
        (self.port,) = free_ports(1)
        self.ended: list[int] = []
        self._env = environment_of(cluster, namespace, self.port) | environment
        self._lock = threading.Lock()
        self._process: LoadedProcess | None = None
        self._keeper: threading.Thread | None = None

    def start(self) -> None:
        """Start it."""
        with self._lock:
            self._process = process = self._spawn()
        self._keeper = threading.Thread(target=self._keep, args=(process,), daemon=True)
        self._keeper.start()

    def _spawn(self) -> LoadedProcess:
        return LoadedProcess(_OPERATOR, "run_operator", (), self._env, self._log)

    def _keep(self, process: LoadedProcess) -> None:
        while True:
            code = process.wait()
            with self._lock:
                if self._process is not process:
                    return
                self.ended.append(code)
                self._process = process = self._spawn()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it; in the end it must stop in order, and have died of nothing but a lost Lease."""
        self.start()
        try:
            yield
        except BaseException:
            self.kill()
            raise
        assert self.stop() == 0, self.log()
        assert set(self.ended) <= {EXIT_LEASE_LOST}, (self.ended, self.log())

    def kill(self) -> None:
        """SIGKILL, by pid."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        with self._lock:
            process, self._process = self._process, None
        if process is None or self._keeper is None:
            return 0
        os.kill(process.pid, number)
        self._keeper.join(30)
        if self._keeper.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            self._keeper.join()
            raise AssertionError("the operator did not end on a signal")
        return process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the process as it runs now."""
        with self._lock:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):  # its keeper starts another one
                os.kill(self._process.pid, number)

    @property
    def pid(self) -> int:
        """The process as it runs now."""
        with self._lock:
            assert self._process is not None
            return self._process.pid

    async def until_ready(self) -> None:
        """Wait until it leads in order, or could."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            # A process that starts tells nobody when its port is open.
            while not await asyncio.to_thread(self._is_ready):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def until_ended(self, code: int) -> None:
        """Wait until one of its lives has ended by itself, with this exit code."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            # Its keeper is a thread, and tells nobody.
            while code not in self.ended:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def _is_ready(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def log(self) -> str:
        """Return the end of its log."""
        return end_of(self._log)


@contextlib.asynccontextmanager
async def led_by(api: KubeApi, namespace: str, operator: OperatorProcess) -> AsyncIterator[None]:
    """Let an operator lead that does not die."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    dead = (await api.get(f"{path}/rezone-operator"))["spec"]["leaseTransitions"]
    with operator.running():
        await until(api, path, "rezone-operator", lambda o: o["spec"]["leaseTransitions"] > dead)
        yield


def deed_of(step: str) -> str:
    """Return a step's deed: that of a state is to store it."""
    if isinstance(step, TaskState):
        return f"RebalanceTask {step}"
    return f"RegionMigration {step}" if isinstance(step, MigrationState) else step


class DyingOperator:
    """The operator of one pod, one life after the other; each is killed at the point it was given.

    A pod that starts again takes its own Lease over at once, and all lives are children of one
    process that has loaded everything: so a test can afford many lives.
    """

    POD = "dying-operator"

    def __init__(
        self, cluster: TestCluster, namespace: str, logs: Path, **environment: str
    ) -> None:
        self._log = logs / "dying-operator.log"
        own = {"POD_NAME": self.POD, **environment}
        (port,) = free_ports(1)
        with self._log.open("ab") as log:
            self._parent = subprocess.Popen(
                [sys.executable, str(DYING_OPERATOR)],
                env=environment_of(cluster, namespace, port) | own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                process_group=0,
            )

    def __enter__(self) -> Self:
        """Be there to live."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what is loaded, and what lives since its test has failed."""
        os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.communicate()

    async def die_in(self, *steps: str) -> None:
        """Live once or twice in each of these steps: states to be stored, or other deeds."""
        for number, step in enumerate(steps):
            points = {number % 2 == 1} | ({False, True} if EVERY_POINT else set())
            for after in sorted(points if step not in ONLY_AFTER else {True}):
                await self.dies(step, after=after)

    async def dies(self, step: str, *, after: bool, seconds: float = DEADLINE_SECONDS) -> None:
        """Live until SIGKILL before or after a step; a life that loses its Lease does not count."""
        point = CrashPoint(deed_of(step), after)
        while (code := await asyncio.to_thread(self._live, point, seconds)) == EXIT_LEASE_LOST:
            continue
        assert code == -signal.SIGKILL, f"{point}: it ended with {code}\n{end_of(self._log)}"

    def _live(self, point: CrashPoint, seconds: float) -> int:
        stdin, stdout = self._parent.stdin, self._parent.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(dataclasses.asdict(point)).encode() + b"\n")
        ready, _, _ = select.select([stdout], [], [], seconds)
        assert ready, f"{point} was never reached\n{end_of(self._log)}"
        code = stdout.readline()
        assert code, f"{point}: its parent has ended\n{end_of(self._log)}"
        return int(code)
