"""Jobs of Spark of which one task hangs behind its work, so that a test can break something."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rezone.transfer.bulk.progress import Phase
from rezone.transfer.bulk.units import R, Runner, Task, U

HANGS_SECONDS = 300.0


class Held:
    """All attempts of one task, until they may go on; the directory is one of executors, too."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory

    def attempts(self) -> list[Path]:
        """Return in which executor's directory each attempt hangs, or has."""
        return [Path(place) for place, _ in self._told()]

    def processes(self) -> list[int]:
        """Return the processes of attempts that run."""
        found = [int(process) for _, process in self._told()]
        return [process for process in found if Path(f"/proc/{process}").exists()]

    def _told(self) -> list[list[str]]:
        return [path.read_text().splitlines() for path in self._directory.glob("*.attempt")]

    def go_on(self) -> None:
        """Let them end."""
        (self._directory / "go_on").touch()

    def hang(self) -> Callable[[], None]:
        """Return what an attempt calls. Executors do not have this module: they get a closure."""
        directory = str(self._directory)

        def wait() -> None:
            name, over = f"{directory}/{uuid.uuid4()}", time.monotonic() + HANGS_SECONDS
            Path(name).write_text(f"{Path.cwd()}\n{os.getpid()}")
            os.rename(name, f"{name}.attempt")  # noqa: PTH104 - whole or not there
            while not Path(f"{directory}/go_on").exists() and time.monotonic() < over:
                threading.Event().wait(0.05)  # a poll for a file

        return wait

    def runner(self, inner: Runner) -> Runner:
        """Return a runner whose first unit hangs."""
        return _Holding(inner, self.hang())

    def rows(self, value: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """Return a function for `mapInArrow`: the task with the row of id 0 hangs behind it."""
        wait = self.hang()

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa  # noqa: PLC0415 - runs in a task

            holds = False
            for batch in batches:
                ids = batch["id"].to_pylist()
                holds = holds or 0 in ids
                yield pa.RecordBatch.from_pydict(
                    {"id": batch["id"], "value": [f"{value} {n}" for n in ids]}
                )
            if holds:
                wait()

        return run


class _Holding:
    def __init__(self, inner: Runner, wait: Callable[[], None]) -> None:
        self._inner = inner
        self._wait = wait

    def __call__(self, phase: Phase, units: Sequence[U], task: Task[U, R]) -> list[R]:
        wait = self._wait

        def run(numbered: tuple[int, U]) -> Any:
            number, unit = numbered
            found = task(unit)
            if number == 0:
                wait()
            return found

        return self._inner(phase, list(enumerate(units)), run)
