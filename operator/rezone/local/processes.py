"""Processes that outlive whoever started them.

A process is known by its pid and its start time together: a pid alone may be somebody else's by the
time it is signalled. Every process is the leader of a session and process group of its own, and
signals go to the group.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Fields of /proc/<pid>/stat behind the command's closing bracket: 0 is the state, 19 the start
# time.
_STAT_STATE = 0
_STAT_START = 19
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ProcessId:
    """One process, not to be taken for a later one with the same pid."""

    pid: int
    start: str

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        _reap(self.pid)
        return start_of(self.pid) == self.start

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the process group; False, and nothing sent, when it is gone."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        return True

    def end_rest(self) -> None:
        """Kill what is left of the process group after the process itself has ended."""
        # With a living process of this number the group may be that one's: then nothing is ours.
        if start_of(self.pid) is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_seconds: float) -> bool:
        """Block until the process has ended; False if it still runs after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def stop(self, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL after the grace period."""
        if self.signal(signal.SIGTERM) and not self.wait(grace_seconds):
            self.signal(signal.SIGKILL)
            self.wait(grace_seconds)


def start_of(pid: int) -> str | None:
    """Return what tells a process from others with its pid; None when it is dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _start_by_ps(pid)
    fields = text.rpartition(")")[2].split()
    if fields[_STAT_STATE] in {"Z", "X"}:
        return None
    return f"{_boot_id()}:{fields[_STAT_START]}"


def _boot_id() -> str:
    """Start times count from boot, so they repeat after one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "-"


def _start_by_ps(pid: int) -> str | None:
    """Tell the start time where there is no /proc (macOS)."""
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = done.stdout.strip().partition(" ")
    return started.strip() if done.returncode == 0 and not state.startswith("Z") else None


def _reap(pid: int) -> None:
    """Collect the exit of a child of ours, so that it does not stay a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> ProcessId:
    """Start a detached process that appends its output to a file.

    Raises OSError if the program cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    # Popen warns when it is dropped while the child runs; here the identity is what is kept.
    process.returncode = 0
    # One that ended at once is a zombie of ours: that it has ended is for the caller to see.
    return ProcessId(process.pid, start_of(process.pid) or "ended")


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file's content so that readers see the old or the new text, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", errors="surrogateescape") as handle:
        handle.write(text)
    temporary.replace(path)


def remove_tree(path: Path) -> None:
    """Remove a directory that may be gone already."""
    shutil.rmtree(path, ignore_errors=True)


class PidFile:
    """Where the identity of a process is kept between runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> ProcessId | None:
        """Return the recorded process if it still runs."""
        try:
            stored = json.loads(self._path.read_text())
            process = ProcessId(int(stored["pid"]), str(stored["start"]))
        except (FileNotFoundError, ValueError, KeyError):
            return None
        return process if process.alive() else None

    def write(self, process: ProcessId) -> None:
        """Record a process."""
        write_atomically(self._path, json.dumps({"pid": process.pid, "start": process.start}))

    def clear(self) -> None:
        """Forget the process."""
        self._path.unlink(missing_ok=True)
