"""Programs built once from their Go modules.

Two processes may ask at once: a file lock lets one build, and a binary appears under its name only
when complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rezone.local.errors import LocalError

Report = Callable[[str], None]

_REPORT_EVERY_SECONDS = 15.0


@dataclass(frozen=True)
class GoProgram:
    """What is built, out of which module, and where it is kept."""

    package: str
    module: Path
    linker_flags: str
    target: Path
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the program is called."""
        return self.target.name

    def built(self) -> Path | None:
        """Return the program if it is there."""
        return self.target if os.access(self.target, os.X_OK) else None


def build(program: GoProgram, go: str, env: Mapping[str, str], report: Report) -> Path:
    """Return the program, built now if nobody has yet.

    Raises LocalError if the build fails.
    """
    with _build_lock(program.target.parent, report):
        # Whoever held the lock before may have built it.
        return program.built() or _build_now(program, go, env, report)


@contextlib.contextmanager
def _build_lock(directory: Path, report: Report) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that builds these programs")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build_now(program: GoProgram, go: str, env: Mapping[str, str], report: Report) -> Path:
    name, target = program.name, program.target
    temporary = target.with_name(f".{name}.{os.getpid()}.tmp")
    log = target.with_name(f".{name}.log")
    arguments = ["-trimpath", "-ldflags", program.linker_flags, "-o", str(temporary)]
    if program.tags:
        arguments += ["-tags", ",".join(program.tags)]
    build_env = {**env, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GO111MODULE": "on"}
    report(f"{name}: building (once; it is kept in {target.parent})")
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [go, "build", *arguments, program.package],
            cwd=program.module,
            env=build_env,
            stdout=output,
            stderr=output,
        )
        try:
            while _still_runs(process):
                report(f"{name}: building, {time.monotonic() - started:.0f} s so far")
        except BaseException:
            process.kill()
            process.wait()
            temporary.unlink(missing_ok=True)
            raise
    if process.returncode != 0:
        temporary.unlink(missing_ok=True)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LocalError(f"building {name} failed:\n{tail}")
    temporary.replace(target)
    log.unlink()
    report(f"{name}: built in {time.monotonic() - started:.0f} s")
    return target


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_REPORT_EVERY_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False
