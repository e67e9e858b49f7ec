"""SparkApplications as Rezone makes them, in the hands of kubeflow's spark-operator.

Definitions, webhooks, controller and spark-submit are the real ones, the API server too. There are
no nodes: the tests say of a driver's pod what a kubelet would.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from e2e.kind.command import CommandError, say
from e2e.kubernetes.cluster import Cluster, Json
from e2e.operators.conftest import tools_for
from e2e.operators.documented import manifests
from e2e.operators.programs import establish, spark_operator
from e2e.operators.spark_operator import SparkOperator
from rezone.domain.access.template_policy import TemplatePolicy
from rezone.domain.model.world import SparkView
from rezone.domain.rebalance.run import child_name
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import TaskKind, ZoneKind
from rezone.kube.jobs.spark import (
    SparkSettings,
    SparkStore,
    build_application,
    plan_config_name,
)
from rezone.kube.nodes.template import MERGE_KEYS
from rezone.kube.stored.store import StatusStore
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings
from rezone.resources.model import ObjectMeta
from rezone.resources.task import RebalanceTask, RebalanceTaskSpec
from rezone.resources.zone import DistributionZone

pytestmark = pytest.mark.timeout(1800)

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
VALUES = ROOT / "manifests" / "overlays" / "with-spark-operator" / "spark-operator-values.yaml"
# As docs/start/install.md and the values have them.
NAMESPACE, ACCOUNT = "rezone-system", "rezone-spark"
SETTINGS = SparkSettings(
    image="registry.example/rezone-spark:1",
    tls=True,
    template_policy=TemplatePolicy.of(("*",), MERGE_KEYS),
)
CONTAINER = "spark-kubernetes-driver"
# A Java program starts, on a machine that does much else besides.
SUBMITTED_SECONDS = 300.0
# Too many for an argument (INLINE_PLAN_BYTES_MAX).
LONG_PLAN_COPIES = 12_000
# What a person may add: each part goes another way through the spark-operator.
TEMPLATE: Json = {
    "sparkConf": {
        "spark.speculation": "true",
        # On a machine that does much else spark-submit's ten seconds for a request are too few.
        "spark.kubernetes.submission.connectionTimeout": "60000",
        "spark.kubernetes.submission.requestTimeout": "60000",
    },
    "hadoopConf": {"fs.s3a.endpoint": "store.example"},
    "driver": {
        "coreRequest": "100m",
        "annotations": {"example.com/team": "shop"},
        "tolerations": [{"key": "batch", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "executor": {"instances": 3},
}


class Applications:
    """Rezone's store of SparkApplications, and what becomes of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._kubeconfig = Path(cluster.env["KUBECONFIG"])

    def with_kube(self, act: Callable[[Kube], Awaitable[T]]) -> T:
        """Do something over a connection of Rezone's own."""

        async def run() -> T:
            async with await connect(self._kubeconfig) as kube:
                return await act(kube)

        return asyncio.run(run())

    def make(self, name: str, copies: int = 8, template: Json | None = None) -> None:
        """Make a zone and a task `name`, and for it an application of so many copies."""

        async def make(kube: Kube) -> None:
            zone, task = _zone_and_task(name, template or TEMPLATE)
            body = {"metadata": _identity(zone), "spec": zone.spec.dump()}
            stored = DistributionZone.parse(await kube.create(ZoneKind, body))
            owner = await StatusStore(kube).create(task, stored)
            store = SparkStore(kube, SETTINGS)
            assert await store.ensure(application_of(name), stored, owner, _items(copies))

        self.with_kube(make)

    def view(self, name: str) -> SparkView:
        """Return what Rezone makes of the application's state."""

        async def view(kube: Kube) -> SparkView:
            owner = await _task_of(kube, name)
            return await SparkStore(kube, SETTINGS).state(owner, application_of(name))

        return self.with_kube(view)

    def wait_for(self, name: str, state: str) -> SparkView:
        """Wait until Rezone sees the state; AssertionError when it has failed instead."""
        seen = SparkView(name=name, state="")

        def reached() -> bool:
            nonlocal seen
            seen = self.view(name)
            assert state == "FAILED" or seen.state != "FAILED", seen.error
            return seen.state == state

        self.cluster.until(
            f"{name} is {state}", reached, seconds=SUBMITTED_SECONDS, seen=lambda: str(seen)
        )
        return seen

    def driver(self, name: str) -> Json:
        """Return the driver's pod."""
        return self.cluster.get("pod", _driver_of(name), f"--namespace={NAMESPACE}")

    def report(self, name: str, phase: str, container: Json) -> None:
        """Say of the driver's pod what its kubelet would."""
        status = {
            "name": CONTAINER,
            "image": SETTINGS.image,
            "imageID": "",
            "ready": phase == "Running",
            "restartCount": 0,
            "state": container,
        }
        patch = json.dumps({"status": {"phase": phase, "containerStatuses": [status]}})
        pod = (_driver_of(name), f"--namespace={NAMESPACE}")
        self.cluster.kubectl(
            "patch", "pod", *pod, "--subresource=status", "--type=merge", f"--patch={patch}"
        )

    def run(self, name: str) -> None:
        """Let the driver run."""
        self.wait_for(name, "SUBMITTED")
        self.report(name, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        self.wait_for(name, "RUNNING")

    def end(self, name: str, code: int) -> None:
        """Let the driver end with an exit code."""
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        self.report(name, "Failed" if code else "Succeeded", {"terminated": ended})


def application_of(task: str) -> str:
    """Return the name of a task's first application."""
    return child_name(task, "copy-1")


async def _task_of(kube: Kube, name: str) -> RebalanceTask:
    return RebalanceTask.parse(await kube.get(TaskKind, NAMESPACE, name))


def _driver_of(task: str) -> str:
    return f"{application_of(task)}-driver"


def _zone_and_task(name: str, template: Json) -> tuple[DistributionZone, RebalanceTask]:
    """Return a zone with a template for its applications, and a task of it."""
    spec = {
        "partitions": 8,
        "replicas": 3,
        "dataNodes": {"count": 3},
        "transfer": {"sparkTemplate": template},
    }
    metadata = {"name": f"zone-{name}", "namespace": NAMESPACE, "uid": f"uid-zone-{name}"}
    zone = DistributionZone.parse({"metadata": metadata, "spec": spec})
    meta = ObjectMeta(name=name, namespace=NAMESPACE, uid=f"uid-{name}")
    return zone, RebalanceTask(metadata=meta, spec=RebalanceTaskSpec(zone_name=zone.metadata.name))


def _identity(zone: DistributionZone) -> Json:
    return {"name": zone.metadata.name, "namespace": NAMESPACE}


def _items(count: int) -> list[dict[str, Any]]:
    """Return a plan of so many copies, in JSON form."""
    return [
        {
            "partition": partition,
            "source": f"10.0.{partition % 251}.1:7400",
            "source_id": 1,
            "targets": [{"id": 2, "address": f"10.0.{partition % 251}.2:7400"}],
            "revision": partition,
        }
        for partition in range(count)
    ]


@pytest.fixture(scope="module")
def applications(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applications]:
    """Run the spark-operator on a control plane whose namespace takes "restricted" pods only."""
    foreign = spark_operator()
    say(f"spark-operator {foreign.version}")
    folder = tmp_path_factory.mktemp("spark-operator")
    components = ("etcd", "kube-apiserver", "kube-controller-manager")
    plane = ControlPlane(
        folder / "plane", ControlPlaneSettings(components=components, unsafe_no_fsync=True)
    )
    try:
        plane.start(say)
        cluster = tools_for(plane.kubeconfig)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        level = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", NAMESPACE, level)
        establish(cluster, ROOT / "crds")
        # What a spark-submit of this environment's version needs besides.
        cluster.apply(*manifests("start/install.md", "rbac.authorization.k8s.io"))
        account = {"name": ACCOUNT, "namespace": NAMESPACE}
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        with SparkOperator(cluster, foreign, folder).running(VALUES):
            yield Applications(cluster)
    finally:
        plane.stop(delete=True)


def test_definition_and_webhook_know_every_field(applications: Applications) -> None:
    """The API server drops what a definition does not know, and says nothing unless asked."""
    zone, task = _zone_and_task("strict", TEMPLATE)
    manifest = build_application(application_of("strict"), zone, task, "[]", SETTINGS)
    create = ("create", "--validate=strict", "--dry-run=server", "--filename=-", "--output=json")
    answer = json.loads(applications.cluster.kubectl(*create, text=json.dumps(manifest)))
    assert answer["spec"]["driver"]["tolerations"] == TEMPLATE["driver"]["tolerations"]
    manifest["spec"]["driver"]["unheardOf"] = 1
    with pytest.raises(CommandError, match="unheardOf"):
        applications.cluster.kubectl(*create, text=json.dumps(manifest))


def test_a_driver_is_made_as_asked(applications: Applications) -> None:
    """Without its certificates a copy reaches no data node; unconfined, no pod is made at all."""
    applications.make("asked")
    applications.wait_for("asked", "SUBMITTED")
    driver = applications.driver("asked")
    spec, (container,) = driver["spec"], driver["spec"]["containers"]
    assert spec["serviceAccountName"] == ACCOUNT
    assert container["image"] == SETTINGS.image
    secrets = {volume.get("secret", {}).get("secretName") for volume in spec["volumes"]}
    assert "zone-asked-transfer-tls" in secrets
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/rezone/tls", "/tmp"} <= mounts  # noqa: S108 - in the pod
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["REZONE_TLS_DIRECTORY"] == "/etc/rezone/tls"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"key": "batch", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert container["resources"]["requests"]["cpu"] == "100m"
    labels = driver["metadata"]["labels"]
    assert (labels["rezone.dev/zone"], labels["rezone.dev/owner"]) == ("zone-asked", "asked")
    (owner,) = driver["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("SparkApplication", application_of("asked"))


def test_a_long_plan_is_mounted(applications: Applications) -> None:
    """Zones of thousands of partitions could not be moved: only the webhook mounts their plan."""
    applications.make("long", copies=LONG_PLAN_COPIES)
    applications.wait_for("long", "SUBMITTED")
    spec = applications.driver("long")["spec"]
    config = plan_config_name(application_of("long"))
    (volume,) = (v for v in spec["volumes"] if v.get("configMap", {}).get("name") == config)
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == volume["name"])
    assert mount["mountPath"] == "/etc/rezone/plan"


def test_a_copy_completes(applications: Applications) -> None:
    """A task would wait for ever for a state that the operator calls otherwise."""
    applications.make("good")
    applications.run("good")
    applications.end("good", 0)
    assert applications.wait_for("good", "COMPLETED").error == ""


def test_a_driver_fails(applications: Applications) -> None:
    """The next attempt begins when an application has failed; its reason is shown to people."""
    applications.make("bad")
    applications.run("bad")
    applications.end("bad", 3)
    assert "ExitCode: 3" in applications.wait_for("bad", "FAILED").error


def test_a_driver_vanishes(applications: Applications) -> None:
    """A node that is lost takes its driver along: nobody reports how that one ended."""
    applications.make("gone")
    applications.run("gone")
    pod = ("pod", _driver_of("gone"), f"--namespace={NAMESPACE}")
    applications.cluster.kubectl("delete", *pod, "--force", "--grace-period=0")
    assert "not found" in applications.wait_for("gone", "FAILED").error


def test_a_submission_is_refused(applications: Applications) -> None:
    """A template that Spark does not take must end the attempt, with Spark's words."""
    wrong = {"spark.kubernetes.container.image.pullPolicy": "Sometimes"}
    applications.make("refused", template={"sparkConf": {**TEMPLATE["sparkConf"], **wrong}})
    assert "INVALID_CONF_VALUE" in applications.wait_for("refused", "FAILED").error


def test_a_deleted_application_takes_its_driver_along(applications: Applications) -> None:
    """A cancelled rebalance would go on copying."""
    applications.make("cancelled")
    applications.run("cancelled")

    async def delete(kube: Kube) -> bool:
        owner = await _task_of(kube, "cancelled")
        return await SparkStore(kube, SETTINGS).delete(owner, application_of("cancelled"))

    assert applications.with_kube(delete)
    selector = "--selector=rezone.dev/owner=cancelled"
    pods = ("pods", f"--namespace={NAMESPACE}", selector)
    applications.cluster.until(
        "the driver is gone",
        lambda: applications.cluster.items(*pods) == [],
        seconds=60,
        seen=lambda: str(applications.cluster.items(*pods)),
    )
