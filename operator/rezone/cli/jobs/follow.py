"""Submits a bulk job, shows how far it is until it ends, and says how it has ended."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from rezone.cli.jobs.said import number_of, number_or_zero, shown, text_in
from rezone.cli.jobs.states import meaning_for_job
from rezone.domain.observed.spark_states import ENDED, SparkState
from rezone.kube.api.client import Kube
from rezone.kube.jobs.bulk_jobs import JobView, view_of

LOOK_SECONDS = 1.0
FAILED = 2
"""The exit code of what did not come to a result; 1 is one that a person has to look at."""

_OVER = frozenset({*ENDED, SparkState.SUBMISSION_FAILED})

_NUMBERS = ("unitsDone", "units", "rows", "bytes", "bytesPerSecond", "skew", "secondsLeft")

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
        now = (shown(view.state), progress_line(view.progress) if view.progress else "")
        if now[0] != said[0] and view.result is None:
            meaning = meaning_for_job(view.state)
            advice = f"; if it lasts: {meaning.advice}" if meaning.advice else ""
            say(f"{name} is {view.state}: {meaning.says}{advice}" if not now[1] else now[0])
        if now[1] != said[1]:
            say(now[1])
        said = now
        if view.result is not None or view.state in _OVER:
            return view
        await sleep(LOOK_SECONDS)


def progress_line(said: Mapping[str, Any]) -> str:
    """Return progress in words; what a driver of another version does not say is left out."""
    phase = said.get("phase")
    found = {name: number_or_zero(said, name) for name in _NUMBERS}
    line = f"{shown(phase[:40]) if isinstance(phase, str) else ''}: "
    line += f"{found['unitsDone']} of {found['units']} parts"
    line += f", {found['rows']:,} rows, {found['bytes'] / 1e6:,.1f} MB"
    line += f", {found['bytesPerSecond'] / 1e6:,.1f} MB/s"
    if isinstance(said.get("skew"), int | float):
        line += f", skew {found['skew']:,.2f}"
    if isinstance(said.get("secondsLeft"), int | float):
        line += f", about {found['secondsLeft']:,} s left"
    return line


def end_of(view: JobView, namespace: str) -> tuple[int, str]:
    """Return the exit code of a job that has ended, and how it has in words."""
    log = f"kubectl logs --namespace {namespace} {shown(view.driver)}"
    if view.result is None:
        why = shown(view.error) or "it has said no result"
        return (
            FAILED,
            f"{view.name} is {shown(view.state)}: {why}; the same command goes on with it; {log}",
        )
    try:
        if "error" in view.result:
            return FAILED, f"{view.name}: {text_in(view.result['error'])}"
        return _told(view.result, log)
    except (KeyError, TypeError, ValueError, AttributeError):
        return FAILED, f"{view.name}: its result is none that this version knows; {log}"


def _told(result: Mapping[str, Any], log: str) -> tuple[int, str]:
    match result["job"]:
        case "verify":
            return _verified(result, log)
        case "load":
            return _loaded(result, log)
        case "export":
            rows, files = number_of(result, "rows"), number_of(result, "files")
            as_of, digest = number_of(result, "asOf"), text_in(result["digest"])
            said = f"{rows:,} rows as of {as_of} are in {files:,} files, digest {digest}"
            if "table" in result:
                said += f"; they are the content of {text_in(result['table'])}"
            return 0, said
        case _:
            raise ValueError("no job")


def _verified(result: Mapping[str, Any], log: str) -> tuple[int, str]:
    first = result["first"]
    count, as_of = number_of(first, "rows"), number_of(first, "asOf")
    rows = f"{count:,} rows as of {as_of}, digest {text_in(first['digest'])}"
    if "equal" not in result:
        return 0, rows
    behind = _not_compared(result)
    if result["equal"] is True:
        return (FAILED if behind else 0), "\n".join([f"the same: {rows}", *behind])
    if result["equal"] is not False:
        raise ValueError("equal is neither true nor false")
    ranges, differing = number_of(result, "ranges"), number_of(result, "differingRanges")
    said = [
        f"DIFFERENT: {rows}; {_who_differs(result)}",
        f"{differing:,} of {ranges:,} ranges of key hashes differ",
    ]
    if "differingRows" in result:
        narrowed, found = number_of(result, "narrowedRanges"), number_of(result, "differingRows")
        said.append(f"in {narrowed:,} of them {found:,} rows; their keys: {log}")
    for each in result.get("differing", [])[:10]:
        first_hash, last_hash = map(text_in, each["hashes"])
        ours, theirs = number_of(each, "firstRows"), number_of(each, "otherRows")
        line = f"  {first_hash} to {last_hash}: {ours:,} rows, {theirs:,}"
        if "node" in each:
            partition, node = number_of(each, "partition"), number_of(each, "node")
            leader = number_of(each, "leader")
            line += f"; partition {partition} on data nodes {leader} (leader) and {node}"
        said.append(line)
    return 1, "\n".join([*said, *behind])


def _who_differs(result: Mapping[str, Any]) -> str:
    if "replicas" not in result:
        return f"the other has {number_of(result['other'], 'rows'):,} rows"
    nodes = [
        str(number_of(each, "node"))
        for each in result["replicas"]
        if number_of(each, "differingRanges")
    ]
    return f"replicas on data nodes {', '.join(nodes)} differ from their leaders"


def _not_compared(result: Mapping[str, Any]) -> list[str]:
    """Return lines about replicas that were not compared."""
    return [
        f"  NOT COMPARED: partition {number_of(each, 'partition')} on data node "
        f"{number_of(each, 'node')} is not in sync"
        for each in result.get("notCompared", [])
    ]


def _loaded(result: Mapping[str, Any], log: str) -> tuple[int, str]:
    rows, files = number_of(result, "rows"), number_of(result, "files")
    refused = number_of(result, "refusedRows")
    said = f"{rows:,} rows of {files:,} files are "
    match result.get("overwritten"):
        case None:
            said += "loaded"
        case True:
            said += "all rows of the zone now"
        case False if refused:
            said = "nothing of the zone has changed"
        case _:
            raise ValueError("overwritten is neither true nor false")
    if not refused:
        return 0, said
    return 1, f"{said}, {refused:,} were refused; which and why: {log}"


def say_line(text: str) -> None:
    """Say a line where it does not mix with the result."""
    click.echo(text, err=True)
