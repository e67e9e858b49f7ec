"""Processes are known by pid and start time, and are ended as groups."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

from rezone.local.processes import PidFile, ProcessId, spawn, start_of, write_atomically

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def identity_of(pid: int) -> ProcessId:
    """Return the identity of a process that runs."""
    start = start_of(pid)
    assert start is not None
    return ProcessId(pid, start)


def test_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    """With the pid alone, `down` could kill whatever got the pid after a reboot."""
    process = spawn(SLEEPER, log=tmp_path / "log")
    try:
        impostor = dataclasses.replace(process, start="another boot:1")
        assert not impostor.signal(signal.SIGKILL)
        impostor.stop(0.1)
        assert process.alive()
        pid_file = PidFile(tmp_path / "pid")
        pid_file.write(impostor)
        assert pid_file.read() is None
        pid_file.write(process)
        assert pid_file.read() == process
    finally:
        process.stop(5)
    assert not process.alive()


def test_stop_takes_the_whole_group(tmp_path: Path) -> None:
    """A child left behind would keep the pod's port and lock files."""
    child_file = tmp_path / "child"
    script = f"sleep 60 & echo $! > {child_file}.tmp; mv {child_file}.tmp {child_file}; wait"
    process = spawn(["/bin/sh", "-c", script], log=tmp_path / "log")
    while not child_file.exists():
        assert process.alive()
    child = identity_of(int(child_file.read_text()))
    process.stop(5)
    assert child.wait(5)


def test_children_of_a_killed_process_are_ended_and_no_one_elses(tmp_path: Path) -> None:
    """A container whose wrapper alone was killed would go on beside its successor."""
    child_file = tmp_path / "child"
    script = f"sleep 60 & echo $! > {child_file}.tmp; mv {child_file}.tmp {child_file}; wait"
    process = spawn(["/bin/sh", "-c", script], log=tmp_path / "log")
    while not child_file.exists():
        assert process.alive()
    child = identity_of(int(child_file.read_text()))
    process.end_rest()
    assert process.alive(), "not while it lives: the number may be somebody else's by then"
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(5)
    assert child.alive()
    process.end_rest()
    assert child.wait(5)


def test_stop_kills_what_ignores_the_signal(tmp_path: Path) -> None:
    """A process that ignores SIGTERM would make `down` hang."""
    ready = tmp_path / "ready"
    process = spawn(
        ["/bin/sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 1; done"],
        log=tmp_path / "log",
    )
    while not ready.exists():
        assert process.alive()
    process.stop(0.1)
    assert not process.alive()


def test_an_ended_process_has_no_start() -> None:
    """A pid that is free must not be recorded as somebody's."""
    done = subprocess.Popen(["/bin/true"])
    done.wait()
    assert start_of(done.pid) is None


def test_spawn_starts_a_session(tmp_path: Path) -> None:
    """Without a session of its own, Ctrl-C in the shell would end the cluster."""
    process = spawn(SLEEPER, log=tmp_path / "log")
    try:
        assert os.getsid(process.pid) == process.pid
    finally:
        process.stop(5)


def test_atomic_write_leaves_no_rest(tmp_path: Path) -> None:
    """A temporary file left behind would be mounted into pods as a key of a ConfigMap."""
    write_atomically(tmp_path / "a" / "b", "text")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o600
