"""What every test gets: guarded connections, an API server, Hypothesis' profile, an end."""

from __future__ import annotations

import os

from hypothesis import settings

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

__all__ = [
    "apiserver",
    "crds",
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
