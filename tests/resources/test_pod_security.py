"""What the chart installs keeps the rules of linters that are no Go module, and the server's own.

They are kube-linter's default checks, as far as they concern objects that this chart makes.
Exceptions stand beside the rule, with their reason; test_linter.py runs kube-score.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from resource_server import REPOSITORY, Kubectl

from rezone.kube.nodes.data_node import PodSettings, build_pod
from rezone.resources.packaging import OVERLAYS
from rezone.resources.zone import DistributionZone

pytestmark = pytest.mark.slow

Json = dict[str, Any]
CHART = REPOSITORY / "charts" / "rezone"
SPACE = "restricted-test"
# Verbs by which a program gets rights that nobody gave it.
RISING = {"*", "escalate", "bind", "impersonate"}
# The pod of `helm test` runs once and ends: nobody asks whether it lives.
WITHOUT_PROBES = {"Pod"}


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(helm: str, request: pytest.FixtureRequest) -> list[Json]:
    """Return what the chart renders with the values of an example."""
    values = CHART / "examples" / f"{request.param}.yaml"
    command = [helm, "template", "rezone", str(CHART), "--namespace", SPACE, "-f", str(values)]
    command += ["--kube-version", "v1.34.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def pods(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    """Yield the kind and the specification of every pod, made directly or by a template."""
    for each in objects:
        if each["kind"] == "Pod":
            yield "Pod", each["spec"]
        elif "template" in each.get("spec", {}):
            yield each["kind"], each["spec"]["template"]["spec"]


def data_node() -> Json:
    """Return the pod of a data node, as the operator makes it."""
    metadata = {"name": "orders", "namespace": SPACE, "uid": "u"}
    spec = {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}}
    zone = DistributionZone.parse({"metadata": metadata, "spec": spec})
    settings = PodSettings(image="x:1", service_account="rezone-data-node", tls=True)
    return {"apiVersion": "v1", "kind": "Pod", **build_pod(zone, 0, settings)}


def test_containers_have_bounds_and_named_images(objects: list[Json]) -> None:
    """A container without a memory limit takes its node along; one of `latest` is a surprise."""
    found = [*pods(objects), ("DataNode", data_node()["spec"])]
    assert {kind for kind, _ in found} >= {"Deployment", "Pod", "DataNode"}
    for _, pod in found:
        for container in pod["containers"]:
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            # No limit of processor time: it would slow down what has nothing to wait for.
            assert set(container["resources"]["limits"]) == {"memory"}
            assert container["image"].partition(":")[2] not in {"", "latest"}


def test_servers_say_whether_they_live(objects: list[Json]) -> None:
    """A process that hangs would be kept, and asked, for ever."""
    found = [*pods(objects), ("DataNode", data_node()["spec"])]
    for kind, pod in found:
        for container in pod["containers"]:
            has = {probe in container for probe in ("livenessProbe", "readinessProbe")}
            assert has == {kind not in WITHOUT_PROBES}


def test_nothing_of_the_node_is_shared(objects: list[Json]) -> None:
    """A pod in the node's networks or file system is one step from the node."""
    for _, pod in [*pods(objects), ("DataNode", data_node()["spec"])]:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all("hostPath" not in volume for volume in pod.get("volumes", ()))
        assert pod.get("serviceAccountName", "default") != "default"


def test_rights_are_named_one_by_one(objects: list[Json]) -> None:
    """A wildcard gives what nobody thought of; who can list Secrets has them all."""
    rules = [
        rule
        for each in objects
        if each["kind"] in {"Role", "ClusterRole"}
        for rule in each.get("rules") or ()
    ]
    assert rules
    for rule in rules:
        assert not RISING & set(rule["verbs"]), rule
        assert "*" not in {*rule.get("resources", ()), *rule.get("apiGroups", ())}, rule
        if "secrets" in rule.get("resources", ()):
            assert not {"list", "watch"} & set(rule["verbs"]), rule


def test_several_operators_are_apart_and_kept(objects: list[Json]) -> None:
    """Two operators on one node are one, and a drain may take both."""
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    kept = {each["kind"] for each in objects} >= {"PodDisruptionBudget"}
    assert kept == (deployment["spec"]["replicas"] > 1)
    spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert "kubernetes.io/hostname" in {each["topologyKey"] for each in spread}


@pytest.mark.apiserver
def test_pods_are_taken_where_only_restricted_ones_are(
    kubectl: Kubectl, objects: list[Json]
) -> None:
    """Many clusters enforce the level "restricted": nothing would start there."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": label}}
    found = [*pods(objects), ("DataNode", data_node()["spec"])]
    names = {pod["serviceAccountName"] for _, pod in found} | {"default"}
    accounts = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": n, "namespace": SPACE}}
        for n in names
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": [space, *accounts]}
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listed))

    def refusal(spec: Json) -> str:
        spec = {key: value for key, value in spec.items() if key != "priorityClassName"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": SPACE}}
        text = json.dumps({**pod, "spec": spec})
        return kubectl.run("create", "--dry-run=server", "-f", "-", stdin=text).stderr

    assert "violates PodSecurity" in refusal({"containers": [{"name": "c", "image": "x:1"}]})
    assert [refusal(pod) for _, pod in found] == [""] * len(found)
