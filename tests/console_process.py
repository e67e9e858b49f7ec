"""The real `rezone console`: a process on loopback, ended by pid."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECONDS = 40.0
END_SECONDS = 15.0
_LINK = re.compile(rb"Open (http://127\.0\.0\.1:(\d+))/login\?key=(\S+)\n")
_BEHIND = re.compile(rb"Behind a proxy: (127\.0\.0\.1:(\d+)) answers for (\S+)\n")


class ConsoleProcess:
    """One console; within `with` it answers at `address`, and `link` opens its session."""

    def __init__(self, kubeconfig: Path, *words: str, behind_proxy: bool = False) -> None:
        command = [sys.executable, "-m", "rezone.cli.main", "console", "--port", "0", *words]
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONUNBUFFERED": "1",
        }
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        self._said = b""
        self._begins = _BEHIND if behind_proxy else _LINK
        self.address = self.link = self.health = ""

    def __enter__(self) -> Self:
        try:
            found = self._wait_for_link()
        except BaseException:
            self.end()
            raise
        self.address = found[1].decode()
        if self._begins is _LINK:
            self.link = f"{self.address}/login?key={found[3].decode()}"
        else:
            self.address = f"http://{self.address}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        said = self.end()
        if kind is None:
            assert self._process.returncode == 0, said
            assert "Traceback" not in said
            assert "ERROR" not in said

    def _wait_for_link(self) -> re.Match[bytes]:
        assert self._process.stdout is not None
        end = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0, end - time.monotonic())):
                chunk = self._process.stdout.read(4096)
                self._said += chunk
                found = self._begins.search(self._said)
                if found is not None:
                    return found
                if not chunk:
                    break
        raise AssertionError(f"the console did not start: {self._said.decode()}")

    def end(self) -> str:
        """Interrupt it as Ctrl+C does, and return all that it has said."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            rest, _ = self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            rest, _ = self._process.communicate()
            raise AssertionError(f"the console does not end: {self._said + rest!r}") from None
        return (self._said + rest).decode()
