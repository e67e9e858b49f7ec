"""Nothing goes on running: no thread behind its module of tests, no process behind the suite.

A data node that was never closed writes into the output of later tests, counts among their threads,
and keeps channels open for which Flight waits at the process's end. The open standard output of a
process that outlives the suite keeps whoever reads that waiting.
"""

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LEAVE_SECONDS = 5.0
"""What was told to end may need a moment: some threads look each second whether they shall."""

LOOK_SECONDS = 0.1

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes whose parent has ended become children of this one, not of the first."""

_LIBRARIES = re.compile(r"Thread-|Dummy-|asyncio_|AnyIO|ThreadPoolExecutor-")
"""How threads are named that the product has not: a call of gRPC's threads makes them dummies."""


@pytest.fixture(scope="module", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail when threads that the module's tests have started do not end."""
    before = {*threading.enumerate()}
    yield
    until = time.monotonic() + LEAVE_SECONDS
    for thread in _ours() - before:
        thread.join(max(until - time.monotonic(), 0))
    left = sorted(thread.name for thread in _ours() - before)
    assert not left, f"threads go on behind these tests: {left}"


def _ours() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if not _LIBRARIES.match(each.name)}


def adopt() -> None:
    """Have the processes that workers leave behind become children of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_left_behind() -> bool:
    """End the processes that ended workers have left, and say which; return whether there were any.

    For a process without children of its own.
    """
    if _comes_true(lambda: not _children()):
        return False
    # The children of those that are ended come to this process then.
    while children := _children():
        for pid, name in children.items():
            sys.stderr.write(f"\nleft behind, ended now: {name}\n")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return True


def _comes_true(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + LEAVE_SECONDS
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    return met


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
