"""The operator's process as its command runs it, but that it kills itself at a chosen point.

Everything is loaded once. For each line of stdin, a point, a child of this process is one life of
the operator; what its end was goes to stdout. The end is SIGKILL, sent from within the deed, so
that nothing of the process runs behind it: no thread, no handler, no clean-up.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading

import pytest
from crash_points import (
    Crash,
    CrashingClient,
    CrashingRoutes,
    CrashingSpark,
    CrashingStore,
    CrashPoint,
)

from rezone.controller.coordination import coordinator, runtime
from rezone.controller.nodes import monitor
from rezone.controller.process.main import run_operator


def die() -> None:
    """End without another instruction."""
    os.kill(os.getpid(), signal.SIGKILL)


def live(point: CrashPoint) -> int:
    """Run the operator until it dies, or is told to end."""
    crash = Crash(point, die)
    with pytest.MonkeyPatch.context() as patched:
        for module, name, kind in (
            (coordinator, "StatusStore", CrashingStore),
            (coordinator, "SparkStore", CrashingSpark),
            (runtime, "RouteStore", CrashingRoutes),
            (monitor, "NodeClient", CrashingClient),
        ):
            patched.setattr(module, name, functools.partial(kind, crash=crash))
        return run_operator()


def main() -> None:
    """Live once for each point, one life after the other."""
    for line in sys.stdin:
        point = CrashPoint(**json.loads(line))
        # Those of NumPy and Arrow are ready for a fork; a lock of another would stay locked.
        assert threading.active_count() == 1, threading.enumerate()
        if (child := os.fork()) == 0:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            os._exit(live(point))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - who reads is a process


if __name__ == "__main__":
    main()
