"""The operator as users run it, beside a real control plane, and what the processes cost."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rezone.local.cluster import LocalCluster
from rezone.local.controlplane import ControlPlaneSettings
from rezone.local.tools import find_tools

ROOT = Path(__file__).parents[2]
NAMESPACE = "default"
_TICKS = os.sysconf("SC_CLK_TCK")
_STOP_SECONDS = 20.0


@contextlib.contextmanager
def local_cluster(nodes: int) -> Iterator[tuple[LocalCluster, Path]]:
    """Run a one-machine cluster that knows our kinds; also yields a directory for logs."""
    with tempfile.TemporaryDirectory(prefix="rezone-bench-") as name:
        cluster = LocalCluster(Path(name) / "state", ControlPlaneSettings(unsafe_no_fsync=True))
        try:
            cluster.up(nodes=nodes)
            kubectl = [
                str(find_tools(["kubectl"])["kubectl"]),
                "--kubeconfig",
                str(cluster.kubeconfig),
            ]
            for words in (
                ["apply", "--server-side", "--filename", str(ROOT / "crds")],
                ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"],
            ):
                subprocess.run([*kubectl, *words], check=True, stdout=subprocess.DEVNULL)
            yield cluster, Path(name)
        finally:
            cluster.down(delete=True)


@contextlib.contextmanager
def operator(kubeconfig: Path, log: Path, **environment: str) -> Iterator[int]:
    """Run the operator for the benchmark's namespace; yields its pid."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "operator"),
        "KUBECONFIG": str(kubeconfig),
        "REZONE_NAMESPACES": NAMESPACE,
        "REZONE_LEASE_NAMESPACE": NAMESPACE,
        "REZONE_TLS": "off",
        **environment,
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rezone.cli.main", "operator"], env=env, stdout=out, stderr=out
        )
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def writes_of(kubeconfig: Path) -> int:
    """Return how many writes of zones, tasks, routes, pods and the like the API server has taken.

    Leases (elections, nodes), events and what the control plane does for itself do not count.
    """
    kubectl = find_tools(["kubectl"])["kubectl"]
    text = subprocess.run(
        [str(kubectl), "--kubeconfig", str(kubeconfig), "get", "--raw", "/metrics"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    pattern = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.MULTILINE)
    total = 0
    for labels, value in pattern.findall(text):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if found["verb"] in _WRITES and found["resource"] in _COUNTED:
            total += int(float(value))
    return total


_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
_COUNTED = frozenset(
    {
        *("distributionzones", "rebalancetasks", "regionmigrations", "configmaps"),
        *("pods", "services", "poddisruptionbudgets", "secrets", "persistentvolumeclaims"),
    },
)
