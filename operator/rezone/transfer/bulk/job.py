"""How a bulk job begins and ends: arguments, Spark context, last line, exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from rezone.client import OutcomeUnknownError
from rezone.transfer.bulk.progress import Tell, write_line
from rezone.transfer.bulk.resource import Resource
from rezone.transfer.bulk.units import Runner, SparkRunner
from rezone.transfer.options import SourceOptions
from rezone.wire.errors import RezoneError

FAILED = 2
ERROR_CHARACTERS_MAX = 1000

Work = Callable[[argparse.Namespace, Runner], tuple[int, dict[str, Any]]]
"""Does a job; returns the exit code and what the last line says."""

_TOLD_IN_A_LINE = (ValueError, OSError, RezoneError, OutcomeUnknownError, pa.ArrowException)


def add_zone_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every bulk job takes."""
    parser.add_argument("--bootstrap", required=True, help="host:port of data nodes, by commas")
    parser.add_argument("--zone", help="refuse a zone of another name")
    parser.add_argument("--tls-directory", help="the certificate to show")
    parser.add_argument("--application", help="namespace/name of the SparkApplication to tell")
    parser.add_argument("--keep-context", action="store_true", help=argparse.SUPPRESS)


def zone_options(given: argparse.Namespace, prefix: str = "") -> SourceOptions:
    """Return the options of a zone in the arguments. Raises ValueError."""
    found = {
        option: getattr(given, f"{prefix}{name}")
        for option, name in (
            ("bootstrap", "bootstrap"),
            ("zone", "zone"),
            ("tlsDirectory", "tls_directory"),
        )
    }
    return SourceOptions.read({name: text for name, text in found.items() if text})


def run_main(parser: argparse.ArgumentParser, work: Work, arguments: Sequence[str] | None) -> int:
    """Run a job in Spark; 2 when it failed. It is told to the SparkApplication, too."""
    given = parser.parse_args(arguments)
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - wrong arguments need no Spark

    context = SparkContext.getOrCreate(SparkConf().setAppName(f"rezone-{parser.prog}"))
    tells: list[Tell] = [write_line]
    resource = Resource.of(context, given.application)
    if resource is not None:
        tells.append(resource.tell)
    try:
        code, said = attempted(work, given, SparkRunner(context, tells))
        if resource is not None:
            resource.end(said)
    finally:
        if not given.keep_context:
            context.stop()
    write_line(said)
    return code


def attempted(work: Work, given: argparse.Namespace, run: Runner) -> tuple[int, dict[str, Any]]:
    """Do a job; what is wrong with it is told in a line."""
    try:
        return work(given, run)
    except _TOLD_IN_A_LINE as error:
        said = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
    except Exception as error:
        if not (told := _of_task(error)):
            raise
        said = told
    sys.stderr.write(f"{said}\n")
    return FAILED, {"error": said}


def _of_task(error: Exception) -> str:
    """Return the last line of what a task has failed with; empty when it is no such error."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

    if not isinstance(error, Py4JJavaError):
        return ""
    cause = error.java_exception
    lines = [line for line in str(cause.getMessage()).splitlines() if line.strip()]
    # Spark quotes the task's stack: the error itself is the last line that is not indented.
    python = [line for line in lines if "Error" in line and not line.startswith((" ", "\t"))]
    return (python or lines or ["a task failed"])[-1][:ERROR_CHARACTERS_MAX]
