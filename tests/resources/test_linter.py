"""What users install, and the pods that the operator makes, as a linter of Kubernetes sees it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_server import REPOSITORY
from test_pod_security import SPACE, data_node

from rezone.local.tools import find_tools
from rezone.resources.packaging import OVERLAYS

pytestmark = [pytest.mark.slow, pytest.mark.proves("OP-06")]

Json = dict[str, Any]
CHART = REPOSITORY / "charts" / "rezone"
POLICIES = ("--set", "networkPolicy.enabled=true", "--set", f"zoneNamespaces={{{SPACE}}}")
# Rules that do not fit, each with what stands in its place.
IGNORED = {
    # Images have versions for tags; asking the registry at each start makes it a single point.
    "container-image-pull-policy",
    # File systems are read-only; what pods write has volumes, and their logs are turned.
    "container-ephemeral-storage-request-and-limit",
    # The linter knows one of the two ways: the operators have topologySpreadConstraints.
    "deployment-has-host-podantiaffinity",
}


@pytest.fixture(scope="module")
def kube_score() -> Path:
    """Return the linter."""
    return find_tools(["kube-score"])["kube-score"]


def rendered(helm: str, overlay: str) -> list[Json]:
    """Return what the chart installs with an example's values, without its test.

    The test's pod lives for a minute and accepts no connections, so that no policy is its own.
    """
    values = CHART / "examples" / f"{overlay}.yaml"
    command = [helm, "template", "rezone", str(CHART), "--namespace", SPACE, "-f", str(values)]
    command += ["--kube-version", "v1.34.0", "--skip-tests", *POLICIES]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def complaints(kube_score: Path, objects: list[Json]) -> list[str]:
    """Return what the linter finds wrong, a line each."""
    command = [str(kube_score), "score", "-", "--kubernetes-version", "v1.34", "-o", "ci"]
    # A limit of processor time slows down what has nothing to wait for.
    command += ["--ignore-container-cpu-limit"]
    command += [part for each in sorted(IGNORED) for part in ("--ignore-test", each)]
    text = "\n---\n".join(json.dumps(each) for each in objects)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=60
    )
    lines = done.stdout.splitlines()
    assert any(line.startswith("[OK]") for line in lines), done.stderr
    return [line for line in lines if line.startswith(("[CRITICAL]", "[WARNING]"))]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_linter_finds_nothing_to_complain_of(helm: str, kube_score: Path, overlay: str) -> None:
    """Teams that lint what they install would have to make exceptions for this chart."""
    assert complaints(kube_score, [*rendered(helm, overlay), data_node()]) == []


def test_linter_would_complain(kube_score: Path) -> None:
    """A linter that is called wrongly finds nothing wrong with anything."""
    pod = data_node()
    del pod["spec"]["containers"][0]["resources"]
    found = complaints(kube_score, [pod])
    assert any("Memory limit is not set" in line for line in found), found
