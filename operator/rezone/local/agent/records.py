"""What the agent knows about a pod's containers, and its copy on disk.

A record is written before anybody else may rely on it, so that an agent that restarts finds every
process again.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rezone.local.processes import ProcessId, write_atomically


class Phase(StrEnum):
    """Where a container is."""

    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass
class ContainerRecord:
    """One container over all its restarts."""

    name: str
    phase: Phase = Phase.WAITING
    reason: str = "PodInitializing"
    message: str = ""
    restarts: int = 0
    # How many runs were started; the next run's log has this number.
    runs: int = 0
    pid: int = 0
    pid_start: str = ""
    started_at: str = ""
    finished_at: str = ""
    exit_code: int = 0
    # The terminated state before the present one, as the API has it.
    last: dict[str, Any] = field(default_factory=dict)
    started: bool = False
    ready: bool = False

    @property
    def process(self) -> ProcessId | None:
        """The process of the present run, alive or not."""
        return ProcessId(self.pid, self.pid_start) if self.pid else None

    @property
    def succeeded(self) -> bool:
        """Whether the container has ended well."""
        return self.phase is Phase.TERMINATED and self.exit_code == 0

    def wait_for(self, reason: str, message: str = "") -> None:
        """Note why the container does not run."""
        self.phase, self.reason, self.message = Phase.WAITING, reason, message
        self.ready = self.started = False

    def run(self, process: ProcessId) -> None:
        """Note that a run has begun."""
        self.phase, self.reason, self.message = Phase.RUNNING, "", ""
        self.pid, self.pid_start = process.pid, process.start
        self.started_at, self.finished_at = now_text(), ""
        self.exit_code = 0
        self.runs += 1
        self.ready = self.started = False

    def terminate(self, exit_code: int, reason: str = "", message: str = "") -> None:
        """Note that the run has ended."""
        self.phase, self.exit_code = Phase.TERMINATED, exit_code
        self.reason = reason or ("Completed" if exit_code == 0 else "Error")
        self.message = message
        self.finished_at = now_text()
        self.pid = 0
        self.ready = self.started = False

    def prepare_restart(self, reason: str, message: str) -> None:
        """Note that the ended run is followed by another one."""
        self.last = self.terminated_state()
        self.restarts += 1
        self.wait_for(reason, message)

    def terminated_state(self) -> dict[str, Any]:
        """Return the terminated state as the API has it."""
        state = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": self.started_at or self.finished_at,
            "finishedAt": self.finished_at,
        }
        return {**state, "message": self.message} if self.message else state


@dataclass
class PodRecord:
    """One pod of one node."""

    uid: str
    namespace: str
    name: str
    node: str
    address: str = ""
    start_time: str = ""
    containers: dict[str, ContainerRecord] = field(default_factory=dict)

    def container(self, name: str) -> ContainerRecord:
        """Return the record of a container, made on first use."""
        return self.containers.setdefault(name, ContainerRecord(name))

    def save(self, directory: Path) -> None:
        """Write the record into the pod's directory."""
        write_atomically(directory / "record.json", json.dumps(asdict(self)))


def load_record(directory: Path) -> PodRecord | None:
    """Read the record of a pod's directory; None if there is none that can be read."""
    try:
        stored = json.loads((directory / "record.json").read_text())
        containers = {
            name: ContainerRecord(**{**value, "phase": Phase(value["phase"])})
            for name, value in stored.pop("containers").items()
        }
        return PodRecord(**stored, containers=containers)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def now_text() -> str:
    """Return the time as Kubernetes writes it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
