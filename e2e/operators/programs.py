"""The programs and definitions of the operators, from the modules pinned under `go/`."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.gomodules import STRIPPED, GoModule
from e2e.kind.command import CommandError
from e2e.kind.places import default_places
from e2e.kubernetes.cluster import Cluster
from rezone.local.errors import LocalError

_MODULES = Path(__file__).with_name("go")
_STOP_SECONDS = 30.0


@dataclass(frozen=True)
class ForeignOperator:
    """Somebody else's operator: its program and the files of its module."""

    program: Path
    files: Path
    version: str


def cert_manager() -> ForeignOperator:
    """Return cert-manager; skips the test when it can be neither found nor built."""
    version = "github.com/cert-manager/cert-manager/pkg/util.AppVersion"
    return _operator(
        "cert-manager", "certmanager", ".", "github.com/cert-manager/cert-manager", version
    )


def spark_operator() -> ForeignOperator:
    """Return kubeflow's spark-operator; skips the test when it can be neither found nor built."""
    required = "github.com/kubeflow/spark-operator/v2"
    version = "k8s.io/component-base/version.gitVersion"
    return _operator("spark-operator", "spark", f"{required}/cmd/operator", required, version)


def _operator(
    name: str, directory: str, package: str, required: str, version_variable: str
) -> ForeignOperator:
    module = GoModule(_MODULES / directory)
    try:
        version = module.version_of(required)
        flags = f"{STRIPPED} -X {version_variable}={version}"
        program = module.program(name, package, default_places(), flags)
        return ForeignOperator(program, module.sources_of(required), version)
    except (CommandError, LocalError) as error:
        pytest.skip(f"{name} cannot be built here: {error}")


@contextlib.contextmanager
def serving(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a program for a while; AssertionError when it has ended by itself meanwhile."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=None if env is None else dict(env),
            stdout=output,
            stderr=output,
        )
    try:
        yield
        assert process.poll() is None, f"{command[0]} has ended:\n{tail_of(log)}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def establish(cluster: Cluster, definitions: Path) -> None:
    """Apply the definitions in a directory and wait until the API server serves their kinds.

    They take the place of those that are there: our Spark runners bring one of their own.
    """
    cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={definitions}")

    def served() -> bool:
        # kubectl ends at once at a definition that has no conditions yet.
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=10s")
        return True

    seen = ("get", "crd")
    cluster.until("all kinds are served", served, seconds=60, seen=lambda: cluster.kubectl(*seen))


def tail_of(log: Path) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
