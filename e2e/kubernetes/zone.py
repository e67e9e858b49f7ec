"""The zone under test: its manifest, what it is waited for, and its client in a pod."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.histories import impossible_rows
from e2e.kind.command import CommandError, say
from e2e.kubernetes import client_archive
from e2e.kubernetes.cluster import Cluster, Json
from rezone.cli.demo.operations import RowOperation

NAMESPACE = "shop"
ZONE = "orders"
POOL = "rezone.dev/e2e-pool"
KINDS = ("distributionzones", "rebalancetasks", "regionmigrations")
PARTITIONS = 12
REPLICAS = 3
ROWS = 50_000
CLIENT = "client"
CLIENT_SECRET = "client-tls"  # noqa: S105 - a Secret's name
# Limits of write gaps, in seconds: what is available on a machine that does much else besides, not
# what is fast. Nothing is lost in either case.
PLANNED = 30.0
UNPLANNED = 90.0
_READY_SECONDS = 240.0
_CALL_SECONDS = 300.0


def zone_manifest() -> Json:
    """Return the zone: on every node of the pool, on volumes, spread over failure domains."""
    columns = {
        "id": "int64",
        "name": "string",
        "amount": "float64",
        "updated": "timestamp[us]",
        "payload": "string",
    }
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": ZONE, "namespace": NAMESPACE},
        "spec": {
            "partitions": PARTITIONS,
            "replicas": REPLICAS,
            "minInSyncReplicas": 2,
            "schema": {
                "columns": [
                    {"name": name, "type": kind, "nullable": name != "id"}
                    for name, kind in columns.items()
                ],
                "primaryKey": ["id"],
            },
            "storage": {"volumeClaimTemplate": {"size": "1Gi"}},
            "transfer": {"sparkThresholdBytes": 1 << 40},
            "dataNodes": {
                "nodeSelector": {POOL: ZONE},
                "failureDomainKey": "topology.kubernetes.io/zone",
            },
        },
    }


@dataclass(frozen=True)
class Traffic:
    """What the client saw while a case went on, and the proof after it."""

    seconds: float
    writes: int
    reads: int
    partitions_written: int
    gap_seconds_max: float
    partitions_with_gap: int
    write_failures: int
    read_failures: int
    failures: tuple[str, ...]
    stale_reads: tuple[str, ...]
    problems: tuple[str, ...]
    rows_checked: int
    replicas_compared: int

    def faults(self, gap_seconds_max: float) -> list[str]:
        """Return what a user was promised and did not get."""
        faults = [*self.problems, *self.stale_reads]
        if self.partitions_written < PARTITIONS:
            faults.append(f"only {self.partitions_written} of {PARTITIONS} partitions took writes")
        if self.replicas_compared != PARTITIONS * (REPLICAS - 1):
            faults.append(f"{self.replicas_compared} copies are there to be compared")
        if self.gap_seconds_max > gap_seconds_max:
            faults.append(
                f"no write for {self.gap_seconds_max:.1f} s, allowed are {gap_seconds_max:.0f} s: "
                f"{self.failures}"
            )
        return faults

    def summary(self) -> str:
        """Return what a person wants to know, on one line."""
        return (
            f"{self.writes} writes and {self.reads} reads in {self.seconds:.0f} s; longest gap "
            f"{self.gap_seconds_max:.2f} s, over 1 s in {self.partitions_with_gap} of {PARTITIONS} "
            f"partitions; {self.write_failures} writes and {self.read_failures} reads given up; "
            f"{self.rows_checked} rows and {self.replicas_compared} copies proved"
        )


class Zone:
    """Waits for the zone and drives its client; `pictures` gets those of impossible histories."""

    def __init__(self, cluster: Cluster, pictures: Path) -> None:
        self._cluster = cluster
        self._pictures = pictures
        self._operations: list[RowOperation] = []

    def status(self) -> Json:
        """Return the zone's status, empty before the operator has seen it."""
        found: Json = self._cluster.get("dz", ZONE, f"--namespace={NAMESPACE}").get("status", {})
        return found

    def pods(self) -> list[Json]:
        """Return the zone's data node pods that are not on their way out."""
        selector = f"rezone.dev/zone={ZONE},app.kubernetes.io/component=data-node"
        found = self._cluster.items("pods", f"--namespace={NAMESPACE}", f"--selector={selector}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod_on(self, node: str) -> str:
        """Return the name of the data node pod on a node."""
        return next(
            str(pod["metadata"]["name"])
            for pod in self.pods()
            if pod["spec"].get("nodeName") == node
        )

    def volume_of(self, pod: str) -> str:
        """Return the directory on its node that holds a data node's volume."""
        where = f"--namespace={NAMESPACE}"
        volumes = self._cluster.get("pod", pod, where)["spec"]["volumes"]
        claim = next(one["persistentVolumeClaim"] for one in volumes if one["name"] == "data")
        name = self._cluster.get("pvc", claim["claimName"], where)["spec"]["volumeName"]
        spec = self._cluster.get("pv", name)["spec"]
        return str((spec.get("local") or spec["hostPath"])["path"])

    def nodes(self) -> set[str]:
        """Return the Kubernetes nodes whose data nodes are ready."""
        return {
            str(pod["spec"]["nodeName"]) for pod in self.pods() if condition(pod, "Ready") == "True"
        }

    def wait_settled(self, nodes: set[str], seconds: float = _READY_SECONDS) -> float:
        """Wait until these nodes hold the zone, all replicas are in sync and nothing moves."""

        def settled() -> bool:
            zone = self._cluster.get("dz", ZONE, f"--namespace={NAMESPACE}")
            status = zone.get("status", {})
            return (
                condition(zone, "Ready") == "True"
                and condition(zone, "Rebalancing") != "True"
                and condition(zone, "Degraded") != "True"
                and condition(zone, "Reconciling") != "True"
                and status.get("currentTask", "") == ""
                and status.get("observedGeneration") == zone["metadata"]["generation"]
                and self.nodes() == nodes
            )

        return self._cluster.until(
            f"zone {ZONE} is settled on {sorted(nodes)}",
            settled,
            seconds=seconds,
            seen=self.describe,
        )

    def describe(self) -> str:
        """Return what a person would look at when the zone is not as it should be."""
        look = ("get", "dz,rbt,rgm,pods", f"--namespace={NAMESPACE}", "--output=wide")
        return f"\n{self._cluster.kubectl(*look)}\n{json.dumps(self.status(), indent=1)}"

    # --- the client --------------------------------------------------------------------------

    def start_client(self, image: str, certificate: Path, node: str | None) -> None:
        """Run the client's pod, on a node if one is named, and wait until it answers."""
        files = {path.name: path for path in certificate.iterdir()}
        self._create("secret", "generic", CLIENT_SECRET, files)
        with tempfile.TemporaryDirectory() as place:
            archive = Path(place, client_archive.NAME)
            archive.write_bytes(client_archive.client_archive())
            self._create("configmap", "", CLIENT, {archive.name: archive})
        self._cluster.apply(_client_manifest(image, node))
        ready = ("wait", f"pod/{CLIENT}", "--for=condition=Ready", "--timeout=120s")
        self._cluster.kubectl(*ready, f"--namespace={NAMESPACE}", seconds=150)

    def _create(self, kind: str, variant: str, name: str, files: dict[str, Path]) -> None:
        sources = [f"--from-file={key}={path}" for key, path in files.items()]
        words = ["create", kind, *([variant] if variant else []), name, *sources]
        text = self._cluster.kubectl(
            *words, f"--namespace={NAMESPACE}", "--dry-run=client", "--output=json"
        )
        self._cluster.apply(json.loads(text))

    def call_client(self, what: str) -> Json:
        """Ask the client something, through the API server; AssertionError when it cannot."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{CLIENT}:8080/proxy/{what}"
        answer: Json = json.loads(
            self._cluster.kubectl("get", "--raw", path, seconds=_CALL_SECONDS)
        )
        assert "error" not in answer, answer["error"]
        return answer

    @contextlib.contextmanager
    def under_traffic(self, case: str, *, gap_seconds_max: float) -> Iterator[None]:
        """Write and read all along; afterwards nothing acknowledged may be lost or doubled.

        The history of each row, since the client was made, has to be one order of events.

        The gap is the longest time in which some partition took no write. Its limit says what is
        still available, not what is fast.
        """
        self.call_client("start")
        try:
            yield
        except BaseException:
            with contextlib.suppress(CommandError, AssertionError):
                say(f"{case} failed; the client: {self.call_client('stop')}")
            raise
        traffic = _traffic_of(self.call_client("stop"))
        say(f"{case}: {traffic.summary()}")
        self._operations += self._recorded()
        faults = traffic.faults(gap_seconds_max)
        faults += impossible_rows(self._operations, self._pictures)
        assert not faults, f"{case}: {'; '.join(faults)}"

    def _recorded(self) -> Iterator[RowOperation]:
        while told := self.call_client("operations")["operations"]:
            yield from (RowOperation(*each) for each in told)


def _traffic_of(answer: Json) -> Traffic:
    lists = {name: tuple(value) for name, value in answer.items() if isinstance(value, list)}
    return Traffic(**{**answer, **lists})


def condition(found: Json, kind: str) -> str:
    """Return a condition's status, empty when there is none."""
    return str(_condition(found, kind).get("status", ""))


def reason(found: Json, kind: str) -> str:
    """Return a condition's reason, empty when there is none."""
    return str(_condition(found, kind).get("reason", ""))


def _condition(found: Json, kind: str) -> Json:
    conditions = found.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})


def _client_manifest(image: str, node: str | None) -> Json:
    variables = {
        "BOOTSTRAP": f"{ZONE}.{NAMESPACE}.svc:7400",
        "PARTITIONS": str(PARTITIONS),
        "REZONE_TLS_DIRECTORY": "/tls",
    }
    container: dict[str, Any] = {
        "name": "client",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", f"/client/{client_archive.NAME}"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 2},
        "volumeMounts": [
            {"name": "tls", "mountPath": "/tls"},
            {"name": "client", "mountPath": "/client"},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": CLIENT, "namespace": NAMESPACE, "labels": {"app": CLIENT}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            **({"nodeName": node} if node else {}),
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001},
            "containers": [container],
            "volumes": [
                {"name": "tls", "secret": {"secretName": CLIENT_SECRET, "defaultMode": 0o440}},
                {"name": "client", "configMap": {"name": CLIENT}},
            ],
        },
    }
