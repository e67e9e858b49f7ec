"""Spark's own servers as processes on loopback, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from replica_cluster import Coordinator

OPERATOR = str(Path(__file__).parents[3] / "operator")
STARTS_WITHIN_SECONDS = 180
SECONDS = 300.0
"""How long a job, or one step of it, may take."""


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
def standalone(
    directory: Path, workers: int, *, cores: int = 1
) -> Iterator[tuple[str, list[SparkProcess]]]:
    """Run a master and workers; yield the master's URL and the workers.

    Each has an executor's memory for each core. What runs at a worker finds its number in WORKER.
    Each is a host of its own, as Spark speculates on no host that has an attempt.
    """
    with contextlib.ExitStack() as stack:

        def start(name: str, class_name: str, *given: str, **env: str) -> SparkProcess:
            log = directory / f"{name}.log"
            process = SparkProcess(log, "spark-class", class_name, *given, env=env)
            stack.callback(process.kill)
            return process

        deploy = "org.apache.spark.deploy"
        master = start("master", f"{deploy}.master.Master", *_at(0), "--port", "0")
        url = master.says(r"Starting Spark master at (spark://\S+)")
        started = [
            start(
                f"worker-{number}",
                f"{deploy}.worker.Worker",
                *_at(number),
                *("--cores", str(cores), "--memory", f"{cores * 600}m"),
                *("--work-dir", str(directory / f"{number}")),
                url,
                WORKER=str(number),
                SPARK_LOCAL_IP=_host(number),
            )
            for number in range(workers)
        ]
        for worker in started:
            worker.says(r"(Successfully registered with master)")
        yield url, started


def _host(number: int) -> str:
    return f"127.0.0.{1 + number}"


def _at(number: int) -> tuple[str, ...]:
    return "--host", _host(number), "--webui-port", "0"


@contextlib.contextmanager
def speculating(url: str, **settings: str) -> Iterator[Any]:
    """Yield a session on a cluster, with executors of one core, and speculation.

    `settings` are further ones, by names with "_" for ".".
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - skipped without it

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", OPERATOR)
        builder = SparkSession.builder.master(url)
        given = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "2",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.log.level": "ERROR",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        for name, value in given.items():
            builder = builder.config(name, value)
        found = builder.getOrCreate()
        yield found
        found.stop()


@contextlib.contextmanager
def driver(
    url: str, directory: Path, module: str, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job's module as a driver of a cluster, with one executor; what is left of it is killed.

    What it says is added to `driver.log` in the directory.
    """
    options = "--conf spark.ui.enabled=false --conf spark.cores.max=1 --conf spark.driver.host="
    environment = {
        **os.environ,
        "PYTHONPATH": OPERATOR,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
        "PYSPARK_SUBMIT_ARGS": (
            f"--master {url} --executor-memory 512m {options}127.0.0.1 pyspark-shell"
        ),
    }
    command = [sys.executable, "-m", f"rezone.transfer.{module}", *arguments]
    with (directory / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(c: Coordinator, what: str, check: Callable[[], Any], ended: Future[Any]) -> None:
    """Wait while a job runs in another thread."""

    def checked() -> bool:
        if found := check():
            return bool(found)
        assert not ended.done(), ended.result()
        return False

    c.until(what, checked, SECONDS)


def until_driven(
    c: Coordinator,
    what: str,
    check: Callable[[], Any],
    process: subprocess.Popen[bytes],
    directory: Path,
) -> None:
    """Wait while a driver runs, whose log is in a directory."""

    def checked() -> bool:
        assert process.poll() is None, (directory / "driver.log").read_text()[-3000:]
        return bool(check())

    c.until(what, checked, SECONDS)


def running(directory: Path) -> dict[int, Path]:
    """Return the processes of executors, Java's and Python's, below the directory of a cluster.

    By their ids; the value is the directory of its executor, which is in that of its application.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has gone
            place = path.joinpath("cwd").readlink()
            if place.is_relative_to(directory):
                found[int(path.name)] = place
    return found


def kill_executor(directory: Path, executor: Path) -> None:
    """Kill Java's process of an executor; Python's end with it."""
    for process, place in running(directory).items():
        command = Path(f"/proc/{process}/cmdline")
        with contextlib.suppress(OSError):
            if place == executor and b"CoarseGrainedExecutorBackend" in command.read_bytes():
                os.kill(process, signal.SIGKILL)
