"""Kubeflow's spark-operator as its chart installs it, with processes in place of its pods.

Its chart is installed by Helm with the values that docs/start/install.md names: definitions,
accounts, rights, webhooks. The control plane has no nodes, so its two Deployments get no pods; what
those would run runs here, with the arguments of the Deployments and by the tokens of their
accounts, so that a right which the chart does not give is missing here too. The API server finds
the webhook by its Service, which is made to name this machine (an ExternalName). The webhook knows
no way to listen on loopback only.
"""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit

import pyspark
import yaml

from e2e.kubernetes.cluster import Cluster, Json
from e2e.operators.programs import ForeignOperator, serving, tail_of
from rezone.local.controlplane import free_ports
from rezone.local.processes import write_atomically

NAMESPACE = "spark-operator"
_IN_SPACE = f"--namespace={NAMESPACE}"
_READY_SECONDS = 60.0
# The administrator's, and what would make spark-submit send this environment's Python along.
_NOT_PASSED = ("KUBECONFIG", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH")


@dataclass(frozen=True)
class SparkOperator:
    """A cluster, the operator for it, and a directory for what its processes write."""

    cluster: Cluster
    foreign: ForeignOperator
    folder: Path

    @contextlib.contextmanager
    def running(self, values: Path) -> Iterator[None]:
        """Install the chart with these values and run its two Deployments."""
        webhook_port, *health_ports = free_ports(3)
        self.cluster.helm(
            *("install", NAMESPACE, str(self.foreign.files / "charts" / "spark-operator-chart")),
            *(f"--namespace={NAMESPACE}", "--create-namespace", f"--values={values}"),
            f"--set=webhook.port={webhook_port}",
        )
        (service,) = self.cluster.items("services", _IN_SPACE)
        here = {"spec": {"type": "ExternalName", "externalName": "localhost"}}
        words = ("patch", "service", service["metadata"]["name"], _IN_SPACE, "--type=merge")
        self.cluster.kubectl(*words, f"--patch={json.dumps(here)}")
        deployments = self.cluster.items("deployments", _IN_SPACE)
        with contextlib.ExitStack() as stack:
            for deployment, port in zip(deployments, health_ports, strict=True):
                stack.enter_context(self._process(deployment, port))
            yield

    @contextlib.contextmanager
    def _process(self, deployment: Json, health_port: int) -> Iterator[None]:
        """Run what a Deployment would, and wait until it says that it is ready."""
        name, pod = deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        certificates = self.folder / f"{name}-certificates"
        kubeconfig = self._kubeconfig(pod["serviceAccountName"])
        own = [
            f"--kubeconfig={kubeconfig}",
            f"--health-probe-bind-address=127.0.0.1:{health_port}",
            "--metrics-bind-address=0",
            *([f"--webhook-cert-dir={certificates}"] if "webhook" in name else []),
        ]
        log = self.folder / f"{name}.log"
        command = [self.foreign.program, *container["args"], *own]
        with serving(command, log, self._environment(kubeconfig)):
            self.cluster.until(
                f"{name} is ready",
                lambda: _answers(f"http://127.0.0.1:{health_port}/readyz"),
                seconds=_READY_SECONDS,
                seen=lambda: tail_of(log),
            )
            yield

    def _kubeconfig(self, account: str) -> Path:
        """Return a kubeconfig with the token of an account of the chart's."""
        words = ("create", "token", account, _IN_SPACE, "--duration=2h")
        config = self._administrator()
        config["users"][0]["user"] = {"token": self.cluster.kubectl(*words).strip()}
        path = self.folder / f"{account}.kubeconfig"
        write_atomically(path, yaml.safe_dump(config))
        return path

    def _administrator(self) -> Json:
        found: Json = yaml.safe_load(self.cluster.kubectl("config", "view", "--raw", "--minify"))
        return found

    def _environment(self, kubeconfig: Path) -> dict[str, str]:
        """Return what a container of the chart's would find, for spark-submit as well."""
        server = urlsplit(self._administrator()["clusters"][0]["cluster"]["server"])
        kept = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED}
        return {
            **kept,
            "KUBECONFIG": str(kubeconfig),
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
            "SPARK_HOME": str(pyspark.__path__[0]),
        }


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - on loopback
            return bool(answer.status == 200)
    except (URLError, TimeoutError):
        return False
