"""Processes of a benchmark's own, of modules of the harness; each ends with its standard input."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence


def start(module: str, arguments: Sequence[str], *, nice: int = 0) -> "subprocess.Popen[str]":
    """Start a module of the harness, which imports what this process can, with pipes to it."""
    return subprocess.Popen(
        ["nice", f"-n{nice}", sys.executable, "-m", f"harness.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def input_ended() -> threading.Event:
    """Return what is set when this process's standard input ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended
