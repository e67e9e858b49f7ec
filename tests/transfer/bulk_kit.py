"""Bulk jobs without Spark: their units run here, twice each, and may die in the middle."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replica_cluster import Coordinator

from rezone.client import TableClient
from rezone.transfer.bulk import job
from rezone.transfer.bulk.progress import Phase
from rezone.transfer.bulk.units import R, Task, U


class DiedError(Exception):
    """What a driver dies of."""


class Here:
    """Runs units in this process, each twice; dies behind so many of them when told."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.dies_after = dies_after
        self.ran: list[tuple[Phase, int]] = []

    def __call__(self, phase: Phase, units: Sequence[U], task: Task[U, R]) -> list[R]:
        """Run each unit twice, as Spark does with speculation, and keep the later result."""
        self.ran.append((phase, len(units)))
        found = []
        for done, each in enumerate(units):
            if done == self.dies_after:
                raise DiedError
            task(each)
            found.append(task(each)[0])
        return found


def client(zone: Coordinator) -> TableClient:
    """Return a client of a zone."""
    return TableClient(list(zone.peers.values()))


def load_arguments(zone: Coordinator, directory: Path, **more: Any) -> argparse.Namespace:
    """Return arguments of a load whose state is below the directory; `more` says what is loaded."""
    empty = dict.fromkeys(
        ("zone", "tls_directory", "parquet", "csv", "iceberg", "snapshot", "name")
    )
    usual = {
        "bootstrap": zone.nodes[0].address,
        "state": str(directory / "state"),
        "refused_max": 1000,
        "overwrite": False,
    }
    return argparse.Namespace(**{**empty, **usual, **more})


def attempt(
    work: Callable[..., Any], arguments: argparse.Namespace, run: Any = None
) -> tuple[int, Any]:
    """Do a job as its main function does."""
    return job.attempted(work, arguments, run or Here())
