"""How a bulk job begins and ends: arguments, Spark context, last line, exit code."""

import argparse
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from rezone.client import OutcomeUnknownError
from rezone.transfer.bulk.progress import Tell, write_line
from rezone.transfer.bulk.resource import Resource
from rezone.transfer.bulk.units import Runner, SparkRunner
from rezone.transfer.source.options import SourceOptions
from rezone.wire.errors import RezoneError

FAILED = 2
"""Of a job without a result: 1 says that rows differ, or that some were refused."""
ERROR_CHARACTERS_MAX = 1000

Work = Callable[[argparse.Namespace, Runner], tuple[int, dict[str, Any]]]
"""Does a job; returns the exit code and what the last line says."""

_TOLD_IN_A_LINE = (
    ValueError,
    OSError,
    RezoneError,
    OutcomeUnknownError,
    pa.ArrowException,
    msgspec.MsgspecError,
)
_ERROR_LINE = re.compile(r"[\w.]+: |.*Error")
"""How Python names an error, at the end of a stack."""


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
    try:
        code, said = _in_spark(parser.prog, work, given)
    except Exception as error:  # noqa: BLE001 - Spark does not start, or does not stop
        code, said = _failed(error)
    write_line(said)
    return code


def _in_spark(name: str, work: Work, given: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - wrong arguments need no Spark

    context = SparkContext.getOrCreate(SparkConf().setAppName(f"rezone-{name}"))
    try:
        tells: list[Tell] = [write_line]
        resource = Resource.of(context, given.application)
        if resource is not None:
            tells.append(resource.tell)
        code, said = attempted(work, given, SparkRunner(context, tells))
        if resource is not None:
            resource.end(said)
    finally:
        if not given.keep_context:
            context.stop()
    return code, said


def attempted(work: Work, given: argparse.Namespace, run: Runner) -> tuple[int, dict[str, Any]]:
    """Do a job; 2 and the error in words when it has no result."""
    try:
        return work(given, run)
    except Exception as error:  # noqa: BLE001 - Python's exit code 1 would say that rows differ
        return _failed(error)


def _failed(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return how a job ends by an error; an unforeseen one is told with its stack."""
    said = _of_task(error)
    if not said:
        said = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
        if not isinstance(error, _TOLD_IN_A_LINE):
            traceback.print_exception(error)
    sys.stderr.write(f"{said}\n")
    return FAILED, {"error": said}


def _of_task(error: Exception) -> str:
    """Return what a task has failed with; empty when it is no such error."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with PySpark

    if not isinstance(error, Py4JJavaError):
        return ""
    return error_in(str(error.java_exception.getMessage()))


def error_in(message: str) -> str:
    """Return the last line of a task's error, of which Spark quotes the whole stack."""
    # Lines of the stack are indented.
    lines = [line for line in message.splitlines() if line[:1].strip()]
    python = [line for line in lines if _ERROR_LINE.match(line)]
    return (python or lines or ["a task failed"])[-1][:ERROR_CHARACTERS_MAX]
