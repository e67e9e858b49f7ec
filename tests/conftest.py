"""What every test gets: guarded connections, an API server, Hypothesis' profile, an end."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from hack_scripts import hack
from hangs import (
    pytest_configure,
    pytest_exception_interact,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
    pytest_sessionfinish,
    pytest_unconfigure,
)
from kubernetes_fixture import (
    apiserver,
    crds,
    kube,
    kubeconfig,
    namespace,
    only_loopback,
)
from left_running import nothing_left_running

# Of what is slow on a busy machine nothing follows; a test that hangs is ended by its timeout.
settings.register_profile("rezone", deadline=None, print_blob=True)
# A change is judged by the same examples each time it is tested; people look for new ones, and a
# failure prints how to repeat it (`print_blob`).
settings.register_profile("rezone-ci", settings.get_profile("rezone"), derandomize=True)
settings.load_profile("rezone-ci" if os.environ.get("CI") else "rezone")

# A JVM of a test is over before what its optimizing compiler has made pays: Spark's sessions take
# half as much of a processor without.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of garbage collections: a tenth of all tests' time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def configured_log() -> Iterator[None]:
    """Give the log back as it was: a process's main function that a test calls configures it.

    Later tests would miss lines that are below the level of an earlier one.
    """
    before = structlog.get_config()
    yield
    structlog.configure(**before)


__all__ = [
    "apiserver",
    "configured_log",
    "crds",
    "hack",
    "kube",
    "kubeconfig",
    "namespace",
    "nothing_left_running",
    "only_loopback",
    "pytest_configure",
    "pytest_exception_interact",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_unconfigure",
]
