"""A standalone cluster of Spark for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_processes import standalone


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory of the cluster."""
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    """Yield the URL of a cluster with room for two executors, and for another application's."""
    pytest.importorskip("pyspark.sql")
    with standalone(place, 2, cores=2) as (url, _):
        yield url
