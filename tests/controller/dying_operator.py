"""The operator's process as its command runs it, but that it kills itself at a chosen point.

Everything is loaded first; then the point is read from stdin. The end is SIGKILL, sent from within
the deed, so that nothing of the process runs behind it: no thread, no handler, no clean-up.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys

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


def main() -> int:
    """Run the operator until it dies, or is told to end."""
    crash = Crash(CrashPoint(**json.load(sys.stdin)), die)
    with pytest.MonkeyPatch.context() as patched:
        for module, name, kind in (
            (coordinator, "StatusStore", CrashingStore),
            (coordinator, "SparkStore", CrashingSpark),
            (runtime, "RouteStore", CrashingRoutes),
            (monitor, "NodeClient", CrashingClient),
        ):
            patched.setattr(module, name, functools.partial(kind, crash=crash))
        return run_operator()


if __name__ == "__main__":
    sys.exit(main())
