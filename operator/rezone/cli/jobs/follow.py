"""Submits a bulk job, shows how far it is until it ends, and says how it has ended."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from rezone.domain.observed.spark_states import ENDED, SparkState, meaning_of
from rezone.kube.bulk_jobs import JobView, view_of
from rezone.kube.client import Kube

LOOK_SECONDS = 1.0
FAILED = 2
"""The exit code of what did not come to a result; 1 is one that a person has to look at."""

_OVER = frozenset({*ENDED, SparkState.SUBMISSION_FAILED})

Say = Callable[[str], object]
Sleep = Callable[[float], Awaitable[None]]


async def follow(
    kube: Kube, namespace: str, name: str, say: Say, sleep: Sleep = asyncio.sleep
) -> JobView:
    """Return a job that has ended; its states and progress are said as they change.

    Raises MissingError when somebody deletes it.
    """
    said: tuple[str, str] = ("", "")
    while True:
        view = await view_of(kube, namespace, name)
        now = (view.state, progress_line(view.progress) if view.progress else "")
        if now[0] != said[0] and view.result is None:
            meaning = meaning_of(view.state)
            advice = f"; if it lasts: {meaning.advice}" if meaning.advice else ""
            say(f"{name} is {view.state}: {meaning.says}{advice}" if not now[1] else view.state)
        if now[1] != said[1]:
            say(now[1])
        said = now
        if view.result is not None or view.state in _OVER:
            return view
        await sleep(LOOK_SECONDS)


def progress_line(said: Mapping[str, Any]) -> str:
    """Return progress in words; what a driver of another version does not say is left out."""
    numbers = {key: value for key, value in said.items() if isinstance(value, int | float)}
    done, units = numbers.get("unitsDone", 0), numbers.get("units", 0)
    line = f"{str(said.get('phase', ''))[:40]}: {done} of {units} parts"
    line += f", {numbers.get('rows', 0):,} rows, {numbers.get('bytes', 0) / 1e6:,.1f} MB"
    line += f", {numbers.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s"
    if "secondsLeft" in numbers:
        line += f", about {numbers['secondsLeft']:,} s left"
    return line


def end_of(view: JobView, namespace: str) -> tuple[int, str]:
    """Return the exit code of a job that has ended, and how it has in words."""
    log = f"kubectl logs --namespace {namespace} {view.driver}"
    if view.result is None:
        why = view.error or "it has said no result"
        return (
            FAILED,
            f"{view.name} is {view.state}: {why}; the same command goes on with it; {log}",
        )
    result = view.result
    if "error" in result:
        return FAILED, f"{view.name}: {result['error']}"
    try:
        return _told(result, log)
    except (KeyError, TypeError, ValueError, AttributeError):
        return FAILED, f"{view.name}: its result is none that this version knows; {log}"


def _told(result: Mapping[str, Any], log: str) -> tuple[int, str]:
    match result["job"]:
        case "verify":
            return _verified(result, log)
        case "load":
            return _loaded(result, log)
        case "export":
            return 0, (
                f"{result['rows']:,} rows as of {result['asOf']} are in "
                f"{result['files']:,} files, digest {result['digest']}"
            )
        case other:
            raise ValueError(f"{other} is no job")


def _verified(result: Mapping[str, Any], log: str) -> tuple[int, str]:
    first = result["first"]
    rows = f"{first['rows']:,} rows as of {first['asOf']}, digest {first['digest']}"
    if "equal" not in result:
        return 0, rows
    if result["equal"]:
        return 0, f"the same: {rows}"
    said = [
        f"DIFFERENT: {rows}; the other has {result['other']['rows']:,} rows",
        f"{result['differingRanges']:,} of {result['ranges']:,} ranges of key hashes differ",
    ]
    if "differingRows" in result:
        said.append(
            f"in {result['narrowedRanges']:,} of them {result['differingRows']:,} rows; "
            f"their keys: {log}"
        )
    for each in result.get("differing", [])[:10]:
        first_hash, last_hash = each["hashes"]
        said.append(
            f"  {first_hash} to {last_hash}: {each['firstRows']:,} rows, {each['otherRows']:,}"
        )
    return 1, "\n".join(said)


def _loaded(result: Mapping[str, Any], log: str) -> tuple[int, str]:
    said = f"{result['rows']:,} rows of {result['files']:,} files are loaded"
    if not result["refusedRows"]:
        return 0, said
    return 1, f"{said}, {result['refusedRows']:,} were refused; which and why: {log}"


def say_line(text: str) -> None:
    """Say a line where it does not mix with the result."""
    click.echo(text, err=True)
