"""Spark's own servers as processes on loopback, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

OPERATOR = str(Path(__file__).parents[3] / "operator")
STARTS_WITHIN_SECONDS = 180


class SparkProcess:
    """A program of the pyspark package; it leads a process group with what it starts."""

    def __init__(self, log: Path, *command: str, env: Mapping[str, str] | None = None) -> None:
        import pyspark  # noqa: PLC0415 - skipped without it

        home = Path(pyspark.__file__).parent
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [str(home / "bin" / command[0]), *command[1:]],
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_MEMORY": "256m",
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": OPERATOR,
                    **(env or {}),
                },
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def says(self, pattern: str) -> str:
        """Wait until its log has a pattern; return the pattern's group."""
        pause = threading.Event()
        for _ in range(STARTS_WITHIN_SECONDS * 10):
            if found := re.search(pattern, self._log.read_text(errors="replace")):
                return found[1]
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            pause.wait(0.1)
        raise AssertionError(f"no {pattern!r} in {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill it and what it has started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def standalone(directory: Path, workers: int) -> Iterator[tuple[str, list[SparkProcess]]]:
    """Run a master and workers of one core each; yield the master's URL and the workers.

    What runs at a worker finds its number in WORKER.
    """
    loopback = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as stack:

        def start(name: str, class_name: str, *given: str, **env: str) -> SparkProcess:
            log = directory / f"{name}.log"
            process = SparkProcess(log, "spark-class", class_name, *given, env=env)
            stack.callback(process.kill)
            return process

        deploy = "org.apache.spark.deploy"
        master = start("master", f"{deploy}.master.Master", *loopback, "--port", "0")
        url = master.says(r"Starting Spark master at (spark://\S+)")
        started = [
            start(
                f"worker-{number}",
                f"{deploy}.worker.Worker",
                *loopback,
                *("--cores", "1", "--memory", "600m", "--work-dir", str(directory / f"{number}")),
                url,
                WORKER=str(number),
            )
            for number in range(workers)
        ]
        for worker in started:
            worker.says(r"(Successfully registered with master)")
        yield url, started
