"""Running the programs that a cluster is made with."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_LINES = 25


class CommandError(Exception):
    """A program ended with a failure; the message has the end of its output."""


def say(line: str) -> None:
    """Tell the person at the shell what is going on."""
    sys.stderr.write(f"e2e: {line}\n")
    sys.stderr.flush()


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float = 600.0,
    text: str | None = None,
) -> str:
    """Run a program to its end and return what it printed.

    Raises CommandError if it fails or does not end in time.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env=None if env is None else dict(env),
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_seconds,
            input=text,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{' '.join(words)}: {error}") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
        raise CommandError(f"{' '.join(words)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def succeeds(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> bool:
    """Whether a program that only asks something says yes."""
    try:
        run(command, env=env, timeout_seconds=60.0)
    except CommandError:
        return False
    return True


class Step:
    """Says what is being done, and how long it took when it is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = 0.0

    def __enter__(self) -> None:
        say(f"{self._what} ...")
        self._started = time.monotonic()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            say(f"{self._what}: {time.monotonic() - self._started:.0f} s")
