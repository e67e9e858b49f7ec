"""One container: a process group that is started, probed, restarted and stopped.

The process is wrapped by a shell of a few lines that writes the exit code to a file and then ends
what is left of the group; so the code is known even if the agent was away when the process ended.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from rezone.local.agent.environment import (
    ConfigError,
    Invocation,
    base_environment,
    build_environment,
    build_invocation,
    mount_variables,
)
from rezone.local.agent.events import record_event
from rezone.local.agent.probes import ProbeHandlers, ProbeTarget, run_exec, run_probes
from rezone.local.agent.records import ContainerRecord, Phase
from rezone.local.agent.settings import Services
from rezone.local.agent.volumes import ensure_directory
from rezone.local.agent.waiting import cancelled, ended
from rezone.local.api import Json
from rezone.local.processes import ProcessId, spawn

# A handled signal interrupts only the wait: the child has the default action again and ends by
# itself. The last line takes what the child left behind, and the shell with it.
_WRAPPER = (
    'trap : TERM INT HUP; "$@"; code=$?; echo $code > "$0.tmp" && mv "$0.tmp" "$0"; kill -KILL 0'
)
_KILLED = 128 + signal.SIGKILL
_LOG_RUNS_KEPT = 5
_RETRY_SECONDS = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ContainerContext:
    """What a container needs of its pod."""

    pod: Callable[[], Json]
    directory: Path
    address: str
    kubeconfig: Path | None
    volumes: Mapping[str, Path]
    changed: Callable[[], None]


class Container:
    """Keeps one container of a pod in the state its spec asks for."""

    def __init__(
        self, spec: Json, record: ContainerRecord, context: ContainerContext, services: Services
    ) -> None:
        self._spec = spec
        self.record = record
        self._context = context
        self._services = services
        self._directory: Path = context.directory / str(spec["name"])
        self._invocation: Invocation | None = None
        self._restarts_in_row = 0

    async def keep(self, restart_policy: str) -> None:
        """Run the container, again and again as the policy says; return when it is over.

        May be cancelled at any time: the process goes on, and another call takes it up.
        """
        while True:
            if self.record.phase is Phase.WAITING:
                if not await self._start():
                    await asyncio.sleep(_RETRY_SECONDS)
                continue
            if self.record.phase is Phase.RUNNING:
                await self._attend()
            wanted = restart_policy == "Always" or (
                restart_policy == "OnFailure" and self.record.exit_code != 0
            )
            if not wanted:
                return
            await self._back_off()

    async def stop(self, grace_seconds: float, *, hook: bool = True) -> None:
        """End the process: preStop hook, SIGTERM, and SIGKILL when the grace period is over."""
        process = self.record.process
        if self.record.phase is not Phase.RUNNING or process is None:
            return
        deadline = time.monotonic() + grace_seconds
        try:
            async with asyncio.timeout(grace_seconds):
                if hook:
                    await self._pre_stop()
                process.signal(signal.SIGTERM)
                await ended(process)
        except TimeoutError:
            process.signal(signal.SIGKILL)
            await ended(process)
        left = deadline - time.monotonic()
        _log.info(
            "container ended", container=self._spec["name"], grace_left_seconds=round(left, 1)
        )
        self._note_end()

    async def _start(self) -> bool:
        """Start the process; False if the spec or what it refers to does not allow it (yet)."""
        try:
            self._invocation = await self._invoke()
            program = shutil.which(
                self._invocation.command[0], path=self._invocation.env.get("PATH")
            )
        except ConfigError as error:
            self._refuse("CreateContainerConfigError", str(error))
            return False
        if program is None:
            self._refuse(
                "CreateContainerError", f'executable "{self._invocation.command[0]}" not found'
            )
            return False
        run = self.record.runs
        exit_path = self._exit_path(run)
        process = spawn(
            ["/bin/sh", "-c", _WRAPPER, str(exit_path), program, *self._invocation.command[1:]],
            log=self.log_path(run),
            env=self._invocation.env,
            cwd=self._invocation.directory,
        )
        self.record.run(process)
        self._context.changed()
        self.log_path(run - _LOG_RUNS_KEPT).unlink(missing_ok=True)
        record_event(self._services, self._pod, "Started", f"Started container {self._name}")
        return True

    async def _attend(self) -> None:
        """Probe a running process until it ends, and note how it ended."""
        process = self.record.process
        if process is None:
            self._note_end()
            return
        invocation = self._invocation or await self._invoke()
        self._invocation = invocation
        probes = asyncio.create_task(
            self._probe(ProbeTarget(self._spec, self._context.address, invocation))
        )
        try:
            await ended(process)
        finally:
            await cancelled(probes)
        self._note_end()

    async def _probe(self, target: ProbeTarget) -> None:
        loop_restart: list[str] = []

        def started() -> None:
            self.record.started = True
            self._context.changed()

        def ready(value: bool) -> None:  # noqa: FBT001 - the handler's one argument is its meaning
            if self.record.ready != value:
                self.record.ready = value
                self._context.changed()

        def unhealthy(kind: str, message: str) -> None:
            record_event(self._services, self._pod, "Unhealthy", f"{kind} probe failed: {message}")

        handlers = ProbeHandlers(started, ready, unhealthy, loop_restart.append)
        while not loop_restart:
            try:
                await run_probes(target, handlers)
            except ExceptionGroup:
                _log.exception("probing failed", container=self._name)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                break
        if loop_restart:
            message = f"Container {self._name} {loop_restart[0]}, will be restarted"
            record_event(self._services, self._pod, "Killing", message)
            await self._end_for_restart()

    async def _end_for_restart(self) -> None:
        """Signal only: `_attend` waits for the end and notes it."""
        process = self.record.process
        if process is None:
            return
        grace = float(self._pod["spec"].get("terminationGracePeriodSeconds", 30))
        process.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await ended(process)
        except TimeoutError:
            process.signal(signal.SIGKILL)

    async def _back_off(self) -> None:
        """Wait before the next run: not at all at first, then doubling; a long run starts over."""
        settings = self._services.settings
        if _seconds_between(self.record) >= settings.back_off_reset_seconds:
            self._restarts_in_row = 0
        delay = 0.0
        if self._restarts_in_row:
            delay = settings.back_off_base_seconds * 2 ** min(self._restarts_in_row - 1, 20)
        delay = min(delay, settings.back_off_max_seconds)
        self._restarts_in_row += 1
        if delay:
            message = f"back-off {delay:g}s restarting failed container={self._name}"
            self.record.prepare_restart("CrashLoopBackOff", message)
            record_event(self._services, self._pod, "BackOff", message)
        else:
            self.record.prepare_restart("ContainerCreating", "")
        self._context.changed()
        await asyncio.sleep(delay)

    async def _invoke(self) -> Invocation:
        """Build the invocation. Raises ConfigError."""
        home = ensure_directory(self._directory)
        mounts = {
            mount["mountPath"]: self._host_path(mount)
            for mount in self._spec.get("volumeMounts", [])
        }
        by_volume = {
            mount["name"]: self._host_path(mount) for mount in self._spec.get("volumeMounts", [])
        }
        base = base_environment(home) | mount_variables(by_volume)
        base["HOSTNAME"] = self._pod["metadata"]["name"]
        if self._context.kubeconfig is not None:
            base["KUBECONFIG"] = str(self._context.kubeconfig)
        env = await build_environment(self._pod, self._spec, base, self._services.lookup)
        return build_invocation(self._spec, env, mounts, home)

    def _host_path(self, mount: Mapping[str, Any]) -> Path:
        root = self._context.volumes[str(mount["name"])]
        below = str(mount.get("subPath", ""))
        if not below or ".." in Path(below).parts:
            return root
        path = root / below
        return path if path.exists() else ensure_directory(path)

    async def _pre_stop(self) -> None:
        hook = self._spec.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            await asyncio.sleep(float(hook["sleep"]["seconds"]))
        if "exec" in hook:
            invocation = self._invocation or await self._invoke()
            failure = await run_exec(invocation, hook["exec"]["command"])
            if failure is not None:
                record_event(self._services, self._pod, "FailedPreStopHook", failure)

    def _note_end(self) -> None:
        if self.record.process is not None:
            # Killed from outside, the wrapper leaves its child behind, which would keep the
            # pod's ports, and two operators or data nodes would run in the place of one.
            self.record.process.end_rest()
        path = self._exit_path(self.record.runs - 1)
        try:
            code = int(path.read_text())
        except (OSError, ValueError):
            # Only SIGKILL to the group keeps the wrapper from writing it.
            code = _KILLED
        self.record.terminate(code)
        self._context.changed()

    def _refuse(self, reason: str, message: str) -> None:
        if (self.record.reason, self.record.message) != (reason, message):
            record_event(self._services, self._pod, "Failed", f"Error: {message}")
            self.record.wait_for(reason, message)
            self._context.changed()

    def log_path(self, run: int) -> Path:
        """Return the log of a run, counted from 0."""
        return self._directory / f"{run}.log"

    def _exit_path(self, run: int) -> Path:
        return self._directory / f"{run}.exit"

    @property
    def _pod(self) -> Json:
        return self._context.pod()

    @property
    def _name(self) -> str:
        return str(self._spec["name"])


def kill(record: ContainerRecord) -> ProcessId | None:
    """Send SIGKILL to a container's processes; return what is to be waited for."""
    process = record.process
    return process if process is not None and process.signal(signal.SIGKILL) else None


def _seconds_between(record: ContainerRecord) -> float:
    """Return how long the last run took."""
    form = "%Y-%m-%dT%H:%M:%SZ"
    if not record.started_at or not record.finished_at:
        return 0.0
    started = time.mktime(time.strptime(record.started_at, form))
    return time.mktime(time.strptime(record.finished_at, form)) - started
