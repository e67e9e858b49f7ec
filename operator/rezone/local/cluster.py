"""The whole local cluster: control plane, agent, Spark runner and their supervisor.

All state is in one directory. Every part is a detached process with a pid file; `ensure` starts
what does not run. `up` calls it once and the supervisor calls it for ever, so a part that dies
comes back. A file lock keeps up, down and the supervisor apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rezone
from rezone.local.agent.agent import stop_all_pods
from rezone.local.agent.nodes import add_node, is_failed, is_ready
from rezone.local.agent.settings import AGENT_LABEL
from rezone.local.api import KubeApi
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings
from rezone.local.errors import LocalError, StartError
from rezone.local.gobuild import Report
from rezone.local.processes import PidFile, ProcessId, remove_tree, spawn, write_atomically
from rezone.local.sparkrunner import install_crd
from rezone.local.tools import CONTROL_PLANE, check_prerequisites, find_tools

AGENT = "agent"
SPARK_RUNNER = "spark-runner"
SUPERVISOR = "supervisor"

_STOP_GRACE_SECONDS = 10.0
_MARKER = "cluster.json"
_USABLE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_LOG_TAIL_LINES = 20


@dataclass(frozen=True)
class PartStatus:
    """One process of the cluster."""

    name: str
    pid: int | None

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.pid is not None


class LocalCluster:
    """One local cluster; all of its state is below one directory."""

    def __init__(self, state: Path, settings: ControlPlaneSettings | None = None) -> None:
        self._state = state.absolute()
        self._plane = ControlPlane(self._state, settings)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._plane.kubeconfig

    @property
    def own_kubeconfig(self) -> Path:
        """The kubeconfig of the cluster's own parts and commands."""
        return self._plane.own_kubeconfig

    @property
    def exists(self) -> bool:
        """Whether `up` has been called here and the state was not deleted since."""
        return (self._state / _MARKER).exists()

    def up(self, nodes: int = 3, report: Report = lambda _line: None) -> None:
        """Bring everything up, or only what is down; the nodes are made on the first call.

        Raises MissingToolError before anything is started, StartError if a part does not come up.
        """
        if nodes < 1:
            raise LocalError("a cluster needs at least one node")
        check_prerequisites()
        # Building takes minutes: not under the lock, and not as a surprise later.
        find_tools([*CONTROL_PLANE, "kubectl"], report=report)
        with self._lock():
            if not self.exists:
                self._write_marker([f"worker-{number}" for number in range(1, nodes + 1)])
            self.ensure(report)
            self._launch(SUPERVISOR, ["rezone.local.supervisor", "--state-dir", str(self._state)])
        asyncio.run(self._wait_usable())
        report(f"up; state in {self._state}")

    def down(self, *, delete: bool = False) -> None:
        """End everything, pods included, if anything runs; `delete` removes all state as well."""
        if not self._state.exists():
            return
        # First who would start the others again.
        self._stop(SUPERVISOR)
        with self._lock():
            for name in (SPARK_RUNNER, AGENT):
                self._stop(name)
            stop_all_pods(self._state)
            self._plane.stop()
        if delete:
            remove_tree(self._state)

    def ensure(self, report: Report = lambda _line: None) -> None:
        """Start the parts that do not run. Only under the lock.

        Raises StartError if one does not come up.
        """
        marker = json.loads((self._state / _MARKER).read_text())
        self._plane.start(report)
        if not marker["nodes_made"]:
            asyncio.run(self._prepare(marker["nodes"]))
            # From now on the API server knows the nodes; a removed one must not come back.
            self._write_marker(marker["nodes"], made=True)
        common = ["--kubeconfig", str(self.own_kubeconfig)]
        directories = ["--state-dir", str(self._state), "--pki-dir", str(self._state / "pki")]
        self._launch(AGENT, ["rezone.local.agent", *common, *directories])
        self._launch(SPARK_RUNNER, ["rezone.local.sparkrunner", *common])

    async def _prepare(self, nodes: list[str]) -> None:
        """Make what must be there when `up` returns, so that the next `kubectl apply` works."""
        async with KubeApi(self.own_kubeconfig) as api:
            for name in nodes:
                await add_node(api, name)
            await install_crd(api)

    async def _wait_usable(self) -> None:
        """Wait until pods can be made and have a node to run on.

        Raises StartError with the end of the agent's log if that takes too long.
        """
        async with KubeApi(self.own_kubeconfig) as api:
            try:
                async with asyncio.timeout(_USABLE_SECONDS):
                    # No event tells both; this is over after a few rounds.
                    while not await _usable(api):  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_SECONDS)
            except TimeoutError as error:
                log = (self._state / "logs" / f"{AGENT}.log").read_text(errors="replace")
                tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
                raise StartError(f"no node became ready; the agent's log:\n{tail}") from error

    def try_ensure(self, report: Report = lambda _line: None) -> bool:
        """Do as `ensure`; False, and nothing done, if somebody else holds the lock."""
        try:
            with self._lock(wait=False):
                self.ensure(report)
        except BlockingIOError:
            return False
        return True

    def status(self) -> list[PartStatus]:
        """Return all parts with their pids."""
        running: dict[str, ProcessId | None] = dict(self._plane.running())
        running |= {name: self._pid_file(name).read() for name in (AGENT, SPARK_RUNNER, SUPERVISOR)}
        return [
            PartStatus(name, process.pid if process else None) for name, process in running.items()
        ]

    def _launch(self, name: str, words: list[str]) -> None:
        if self._pid_file(name).read() is not None:
            return
        package_root = str(Path(rezone.__path__[0]).parent)
        process = spawn(
            [sys.executable, "-m", *words],
            log=self._state / "logs" / f"{name}.log",
            env={**os.environ, "PYTHONPATH": package_root, "PYTHONUNBUFFERED": "1"},
            cwd=self._state,
        )
        self._pid_file(name).write(process)

    def _stop(self, name: str) -> None:
        process = self._pid_file(name).read()
        if process is not None:
            process.stop(_STOP_GRACE_SECONDS)
        self._pid_file(name).clear()

    def _pid_file(self, name: str) -> PidFile:
        return PidFile(self._state / "run" / f"{name}.json")

    def _write_marker(self, nodes: list[str], *, made: bool = False) -> None:
        write_atomically(self._state / _MARKER, json.dumps({"nodes": nodes, "nodes_made": made}))

    @contextlib.contextmanager
    def _lock(self, *, wait: bool = True) -> Iterator[None]:
        self._state.mkdir(parents=True, exist_ok=True)
        self._state.chmod(0o700)
        with (self._state / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield


async def _usable(api: KubeApi) -> bool:
    accounts = await api.get("/api/v1/namespaces/default/serviceaccounts")
    nodes = (await api.get("/api/v1/nodes", labelSelector=AGENT_LABEL))["items"]
    ready = [node for node in nodes if is_ready(node) or is_failed(node)]
    return bool(accounts["items"]) and len(ready) == len(nodes)


def supervise(cluster: LocalCluster, every_seconds: float) -> None:
    """Start what has died, for ever."""
    while cluster.exists:
        try:
            cluster.try_ensure(print_line)
        except LocalError as error:
            print_line(f"could not start a part: {error}")
        time.sleep(every_seconds)


def print_line(line: str) -> None:
    """Write a line of progress where the process logs."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
