"""View models of SparkApplications: what a zone's Spark jobs do. Pure.

They are objects of another project, written by its operator and whoever may: nothing in them is
relied on, and what has an unexpected form counts as not said.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rezone.domain.observed.spark_states import ENDED, SparkState
from rezone.kube.api.kinds import Manifest
from rezone.kube.api.names import OWNER_LABEL

ERROR_LENGTH_MAX: Final = 500
EXECUTORS_MAX: Final = 1000
"""Executors that are counted; jobs of ours have a few."""


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One SparkApplication; times are as the spark-operator wrote them."""

    name: str
    owner: str
    state: str
    ended: bool
    executors: str
    driver: str
    started: str
    finished: str
    error: str


def job_rows(applications: Iterable[Manifest], most: int) -> tuple[JobRow, ...]:
    """Return the newest jobs, at most so many, those that have not ended first."""
    rows = sorted((job_row(each) for each in applications), key=_begun, reverse=True)
    return tuple(sorted(rows, key=_has_ended)[:most])


def _begun(row: JobRow) -> tuple[str, str]:
    return row.started, row.name


def _has_ended(row: JobRow) -> bool:
    return row.ended


def job_row(application: Manifest) -> JobRow:
    """Return what is shown of a SparkApplication."""
    metadata = _mapping(application, "metadata")
    status = _mapping(application, "status")
    told = _mapping(status, "applicationState")
    state = _text(told, "state") or SparkState.NEW.value
    return JobRow(
        name=_text(metadata, "name"),
        owner=_text(_mapping(metadata, "labels"), OWNER_LABEL),
        state=state,
        ended=state in ENDED,
        executors=_executors(_mapping(status, "executorState")),
        driver=_text(_mapping(status, "driverInfo"), "podName"),
        started=_text(status, "lastSubmissionAttemptTime"),
        finished=_text(status, "terminationTime"),
        error=_text(told, "errorMessage"),
    )


def _executors(states: Mapping[str, Any]) -> str:
    """Return how many executors are in which state."""
    found = Counter(str(state)[:ERROR_LENGTH_MAX] for state in [*states.values()][:EXECUTORS_MAX])
    return ", ".join(f"{count} {state.lower()}" for state, count in sorted(found.items()))


def _mapping(within: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = within.get(name)
    return found if isinstance(found, Mapping) else {}


def _text(within: Mapping[str, Any], name: str) -> str:
    found = within.get(name)
    return found[:ERROR_LENGTH_MAX] if isinstance(found, str) else ""
