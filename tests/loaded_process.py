"""A process of the product that is forked from one that has loaded everything.

What Python imports for a data node takes more than a second of a processor, for an operator two,
and hundreds of tests need three of them. From the fork on it is what users run: a process with a
pid, a log, an environment and an end of its own, that dies by SIGKILL as any other.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_loaded = multiprocessing.get_context("forkserver")
_preloaded = ["rezone.datanode.__main__"]
_loaded.set_forkserver_preload(_preloaded)


def load(module: str) -> None:
    """Have a module loaded as well; what forks starts with the first process, and ends with us."""
    _preloaded.append(module)
    _loaded.set_forkserver_preload(_preloaded)


class LoadedProcess:
    """What tests do with a process, by the names that `subprocess.Popen` has.

    It runs a function of a module, which returns its exit code. One thread at a time may ask for
    its end.
    """

    def __init__(
        self,
        module: str,
        function: str,
        arguments: Sequence[object],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        """Start it; what it writes is appended to `log`."""
        given = (module, function, list(arguments), dict(environment), str(log))
        self._process = _loaded.Process(target=_serve, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that has ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raises subprocess.TimeoutExpired before."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal while it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _serve(
    module: str, function: str, arguments: list[object], environment: dict[str, str], log: str
) -> None:
    """Be the process."""
    run = getattr(importlib.import_module(module), function)
    os.environ.clear()
    os.environ.update(environment)
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(written, sys.stdout.fileno())
    os.dup2(written, sys.stderr.fileno())
    sys.exit(run(*arguments))
