"""Runs commands beside each other, and ends what is left of them when all are over.

    python hack/beside.py [--minutes MINUTES] [--nice NICE] COMMAND BESIDE ...

COMMAND writes to the terminal as it goes. What the commands BESIDE it write is shown when all are
over: all of it if one failed, or its last line. Each has less processor time than the one before
(`nice`, by NICE steps), so that the commands come in the order of how much their clocks matter.
Fails when any does, when they take longer than MINUTES (each then says where it is, if it has
`faulthandler` enabled, as pytest has), and when a process that they have started outlives them: its
open standard output would keep whoever reads that waiting.
"""

import argparse
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NICE = 1
"""Four fifths of a share where all want a processor: tests have limits of time, so hardly less."""

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes whose parent has ended become children of this one, not of the first."""

LEAVE_SECONDS = 5.0
"""A process that was told to end may need a moment; what is there after this was forgotten."""

LOOK_SECONDS = 0.1


def main(command: str, beside: list[str], minutes: float, nice: int) -> int:
    """Run all; return an exit code that is 0 when all have ended well and left nothing."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    running: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: _terminate(running))
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in beside]
        for place, (each, output) in enumerate(zip(beside, outputs, strict=True), start=1):
            quiet = ["nice", "-n", str(nice * place), *shlex.split(each)]
            running.append(subprocess.Popen(quiet, stdout=output, stderr=subprocess.STDOUT))
        running.append(subprocess.Popen(shlex.split(command)))
        in_time = _wait(minutes * 60, lambda: all(each.poll() is not None for each in running))
        if not in_time:
            _say(f"not over after {minutes:g} minutes")
        codes = [_end_of(each) for each in running]
        for each, output, code in zip(beside, outputs, codes, strict=False):
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
            _say("\n".join([f"beside it: {each}", *(lines if code else lines[-1:])]))
    left = _end_left_behind()
    return int(any(codes) or left or not in_time)


def _terminate(running: list[subprocess.Popen[bytes]]) -> None:
    """End all that are running."""
    for each in running:
        each.terminate()


def _wait(seconds: float, over: Callable[[], bool]) -> bool:
    """Return whether it was over in time, also when this process is interrupted meanwhile.

    An interrupt of the terminal has reached the others as well: they end in order, and tell what
    was.
    """
    until = time.monotonic() + seconds
    while not over():
        if time.monotonic() > until:
            return False
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(LOOK_SECONDS)
    return True


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process; one that is not over says where it is, and is over."""
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)
    return process.wait()


def _end_left_behind() -> bool:
    """End the processes that all have left and say which; return whether there were any."""
    none_left = _wait(LEAVE_SECONDS, lambda: not _children())
    # The children of those that are ended come to this process then.
    while children := _children():
        for pid, name in children.items():
            _say(f"left behind, ended now: {name}")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return not none_left


def _children() -> dict[int, str]:
    """Return the command lines of this process's children by pid, without those that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid): _command_line(pid) for pid in children}


def _command_line(pid: str) -> str:
    """Return the arguments with which a child was started."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _say(what: str) -> None:
    """Write something between what the commands write."""
    sys.stdout.write(f"\n== {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--nice", type=int, default=NICE)
    parser.add_argument("command")
    parser.add_argument("beside", nargs="+")
    sys.exit(main(**vars(parser.parse_args())))
