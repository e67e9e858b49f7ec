"""The SparkApplications of bulk jobs that people ask for: verify, export and load (SP-01).

Each belongs to its zone. What it needs besides is named by who asks: Secrets and volume claims of
the zone's namespace. Its progress and its end are annotations that the driver writes.

Concurrency: stateless.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import MissingError
from rezone.kube.api.kinds import Manifest, SparkApplication
from rezone.kube.jobs.spark import SparkJob, secret_conf
from rezone.resources.zone import DistributionZone

PROGRESS_ANNOTATION = "rezone.dev/progress"
RESULT_ANNOTATION = "rezone.dev/result"
JOB_FILES = "local:///opt/rezone/transfer"
OTHER_TLS_PATH = "/etc/rezone/tls-other"
SAID_CHARACTERS_MAX = 100_000
BOOTSTRAP_NODES_MAX = 8


class Volume(NamedTuple):
    """A volume claim of the namespace, and where driver and executors have it."""

    claim: str
    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Means:
    """What a job may use: Secrets with certificates and with variables, volumes, executors."""

    tls_secret: str = ""
    other_tls_secret: str = ""
    env_secret: str = ""
    volumes: Sequence[Volume] = ()


@dataclasses.dataclass(frozen=True)
class JobView:
    """What is known of a job: the application's state, and what the driver has said last."""

    name: str
    state: str
    error: str
    driver: str
    progress: Mapping[str, Any] | None
    result: Mapping[str, Any] | None


def bootstrap_of(zone: DistributionZone) -> str:
    """Return addresses of a zone's data nodes, by commas. Raises MissingError without any."""
    nodes = zone.status.data_nodes if zone.status is not None else ()
    addresses = [node.address for node in nodes if node.address]
    if not addresses:
        raise MissingError(f"zone {zone.metadata.name} has no data nodes yet")
    return ",".join(addresses[:BOOTSTRAP_NODES_MAX])


def bulk_job(
    kind: str, name: str, zone: DistributionZone, arguments: Sequence[str], means: Means
) -> SparkJob:
    """Return the job `kind` of a zone as the application `name` of its namespace."""
    metadata = zone.metadata
    common = ["--bootstrap", bootstrap_of(zone), "--zone", metadata.name]
    told = ["--application", f"{metadata.namespace}/{name}"]
    both: Manifest = {}
    if means.env_secret:
        both["envFrom"] = [{"secretRef": {"name": means.env_secret}}]
    if means.volumes:
        both["volumeMounts"] = [
            {"name": _volume_name(index), "mountPath": each.path}
            for index, each in enumerate(means.volumes)
        ]
    other = means.other_tls_secret
    return SparkJob(
        main_file=f"{JOB_FILES}/{kind}_job.py",
        arguments=[*common, *told, *arguments],
        tls_secret=means.tls_secret,
        conf=secret_conf(other, OTHER_TLS_PATH) if other else {},
        both=both,
        spec={
            "volumes": [
                {
                    "name": _volume_name(index),
                    "persistentVolumeClaim": {"claimName": each.claim},
                }
                for index, each in enumerate(means.volumes)
            ]
        },
    )


def _volume_name(index: int) -> str:
    """Return the name of a volume in pods: a claim's may be longer, and have dots."""
    return f"data-{index}"


async def view_of(kube: Kube, namespace: str, name: str) -> JobView:
    """Return what is known of a job. Raises MissingError when there is none."""
    found = await kube.get(SparkApplication, namespace, name)
    status = found.get("status") or {}
    state = status.get("applicationState") or {}
    annotations = found["metadata"].get("annotations") or {}
    return JobView(
        name=name,
        state=str(state.get("state") or "NEW"),
        error=str(state.get("errorMessage") or ""),
        driver=str((status.get("driverInfo") or {}).get("podName") or f"{name}-driver"),
        progress=said_in(annotations.get(PROGRESS_ANNOTATION)),
        result=said_in(annotations.get(RESULT_ANNOTATION)),
    )


def said_in(text: str | None) -> Mapping[str, Any] | None:
    """Return what a driver has said; None for what is not: anybody may annotate."""
    if not text or len(text) > SAID_CHARACTERS_MAX:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
