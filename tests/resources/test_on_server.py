"""Definitions, chart, manifests and samples on a real API server, through kubectl."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_server import NAMESPACE, REPOSITORY, Kubectl, Server
from test_compiler import SCHEMAS, nodes
from test_constraints import manifest

from rezone.resources import NAMESPACE as SYSTEM
from rezone.resources.crd import RULES

pytestmark = pytest.mark.apiserver

MANIFESTS = REPOSITORY / "manifests"
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))


@pytest.fixture
def zone(kubectl: Kubectl) -> Any:
    """Store a zone with a status as the operator writes it."""
    body = {
        **manifest("DistributionZone", {}),
        "metadata": {"name": "orders", "namespace": NAMESPACE},
    }
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(body))
    status = {
        "replicas": 3,
        "readyDataNodes": 2,
        "partitionsReady": 7,
        "currentTask": "orders-1",
        "selector": "rezone.dev/zone=orders",
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "UnderReplicated",
                "lastTransitionTime": "2026-05-01T10:00:00Z",
            }
        ],
    }
    patch = json.dumps({"status": status})
    args = ("-n", NAMESPACE, "patch", "dz", "orders", "--subresource=status", "--type=merge")
    kubectl(*args, "-p", patch)
    yield body
    kubectl("-n", NAMESPACE, "delete", "dz", "orders", "--wait=false")


@pytest.mark.proves("OP-01")
def test_server_finds_the_schemas_structural(kubectl: Kubectl) -> None:
    """The server tells of a schema it cannot prune by only in a condition."""
    items = json.loads(kubectl("get", "crd", "-o", "json"))["items"]
    ours = [item for item in items if item["spec"]["group"] == "rezone.dev"]
    assert len(ours) == 3
    for item in ours:
        found = {c["type"]: c["status"] for c in item["status"]["conditions"]}
        assert found["Established"] == found["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in found


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("dz.spec.dataNodes", "Which data nodes the zone has: a count, or one on each matching"),
        ("dz.spec.dataNodes", "How many data nodes; the target of /scale."),
        ("dz.spec.dataNodes.autoAdjust", "before its partitions move elsewhere"),
        ("dz.spec.schema.columns", "The column's Arrow type."),
        ("rbt.spec.type", "Drain: move everything off the named data nodes."),
        ("rgm.status.context", "The data node that shall lead."),
    ],
)
def test_explain(kubectl: Kubectl, field: str, says: str) -> None:
    """`kubectl explain` is the manual people have at hand."""
    assert says in " ".join(kubectl("explain", field).split())


@pytest.mark.usefixtures("zone")
def test_printer_columns(kubectl: Kubectl) -> None:
    """Columns whose path is wrong print nothing, and nobody notices."""
    header, row = kubectl("-n", NAMESPACE, "get", "dz", "orders").splitlines()
    assert header.split() == ["NAME", "READY", "PARTITIONS", "IN-SYNC", "NODES", "TASK", "AGE"]
    assert row.split()[:-1] == ["orders", "False", "8", "7", "2", "orders-1"]
    assert "UnderReplicated" in kubectl("-n", NAMESPACE, "get", "dz", "orders", "-o", "wide")
    assert "distributionzone.rezone.dev/orders" in kubectl(
        "-n", NAMESPACE, "get", "rezone", "-o", "name"
    )


@pytest.mark.usefixtures("zone")
def test_scale(kubectl: Kubectl) -> None:
    """Autoscalers and `kubectl scale` see a zone only through /scale."""
    kubectl("-n", NAMESPACE, "scale", "dz", "orders", "--replicas=5")
    path = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}/distributionzones/orders/scale"
    scale = json.loads(kubectl("get", "--raw", path))
    assert scale["spec"] == {"replicas": 5}
    assert scale["status"] == {"replicas": 3, "selector": "rezone.dev/zone=orders"}
    refused = kubectl.run("-n", NAMESPACE, "scale", "dz", "orders", "--replicas=0")
    assert "greater than or equal to 1" in refused.stderr


def test_scale_of_a_zone_on_selected_nodes_is_refused(kubectl: Kubectl) -> None:
    """A count beside a selector would be two answers to one question."""
    body = manifest("DistributionZone", {"spec.dataNodes": {"nodeSelector": {"pool": "x"}}})
    body["metadata"]["name"] = "selected"
    kubectl("create", "-f", "-", stdin=json.dumps(body))
    refused = kubectl.run("-n", NAMESPACE, "scale", "dz", "selected", "--replicas=3")
    kubectl("-n", NAMESPACE, "delete", "dz", "selected", "--wait=false")
    assert "set exactly one of dataNodes.count and dataNodes.nodeSelector" in refused.stderr


def test_field_selector(kubectl: Kubectl) -> None:
    """Tasks of one zone are found by the server, not by reading all."""
    for name, zone_name in (("a", "orders"), ("b", "other")):
        body = manifest("RebalanceTask", {"spec.zoneName": zone_name, "metadata.name": name})
        kubectl("create", "-f", "-", stdin=json.dumps(body))
    selected = ("--field-selector", "spec.zoneName=other", "-o", "name")
    found = kubectl("-n", NAMESPACE, "get", "rbt", *selected).split()
    kubectl("-n", NAMESPACE, "delete", "rbt", "a", "b", "--wait=false")
    assert found == ["rebalancetask.rezone.dev/b"]


def test_defaults_are_stored(kubectl: Kubectl) -> None:
    """Rules read `type` and `engine` without has(): the server must have filled them in."""
    dry = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    task = json.loads(kubectl(*dry, stdin=json.dumps(manifest("RebalanceTask", {}))))
    assert task["spec"] == {"zoneName": "orders", "type": "Zone"}
    zone = json.loads(kubectl(*dry, stdin=json.dumps(manifest("DistributionZone", {}))))
    assert zone["spec"]["dataNodes"] == {
        "count": 3,
        "failureDomainKey": "topology.kubernetes.io/zone",
        "weightKey": "rezone.dev/weight",
    }
    assert "storage" not in zone["spec"]


@pytest.mark.proves("OP-05")
def test_an_apply_changes_what_it_says_and_a_repeat_nothing(kubectl: Kubectl) -> None:
    """Whoever applies a file each minute would undo what the operator says, or start a move."""
    body = manifest("DistributionZone", {"spec.hotStandbys": 1})
    body["metadata"]["name"] = "applied"

    def apply() -> str:
        said = kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(body))
        return said.split()[-1]

    def stored() -> Any:
        return json.loads(kubectl("-n", NAMESPACE, "get", "dz", "applied", "-o", "json"))

    assert apply() == "created"
    status = json.dumps({"status": {"replicas": 3}})
    patch = ("patch", "dz", "applied", "--subresource=status", "--type=merge", "-p", status)
    kubectl("-n", NAMESPACE, *patch)
    assert apply() == "unchanged"
    assert stored()["metadata"]["generation"] == 1
    body["spec"]["dataNodes"] = {"count": 4}
    del body["spec"]["hotStandbys"]
    assert apply() == "configured"
    found = stored()
    kubectl("-n", NAMESPACE, "delete", "dz", "applied", "--wait=false")
    assert found["metadata"]["generation"] == 2
    assert found["spec"]["dataNodes"]["count"] == 4
    assert "hotStandbys" not in found["spec"]
    assert found["status"]["replicas"] == 3


@pytest.mark.proves("OP-05")
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples(kubectl: Kubectl, sample: Path) -> None:
    """Samples are what people copy first; unknown fields are errors here."""
    kubectl("-n", NAMESPACE, "apply", "--dry-run=server", "--validate=strict", "-f", str(sample))


def test_samples_cover_all_kinds() -> None:
    """A kind without a sample is a kind nobody tries."""
    kinds = {yaml.safe_load(path.read_text())["kind"] for path in SAMPLES}
    assert kinds == SCHEMAS.keys()


def status_limits() -> list[Any]:
    """Return each limit in the statuses with a value just within and one just beyond it."""
    found = []
    for kind, schema in SCHEMAS.items():
        for path, node in nodes("status", schema["properties"]["status"]):
            if "maxLength" in node and node["maxLength"] < 1000 and "[]" not in path:
                pair = ("x" * node["maxLength"], "x" * (node["maxLength"] + 1))
                found.append(pytest.param(kind, path, *pair, id=f"{kind}-{path}"))
            if "maximum" in node and "[]" not in path:
                pair = (node["maximum"], node["maximum"] + 1)
                found.append(pytest.param(kind, path, *pair, id=f"{kind}-{path}"))
    return found


@pytest.mark.parametrize(("kind", "path", "good", "bad"), status_limits())
def test_status_limit(server: Server, kind: str, path: str, good: Any, bad: Any) -> None:
    """A status over its limit is refused for ever; the operator must know the same limits."""
    stored = server.create(manifest(kind, {"metadata.name": "status-test"}))
    try:
        assert server.try_status(stored, _status(kind, path, good)) == ""
        said = server.try_status(stored, _status(kind, path, bad))
    finally:
        server.delete(stored)
    assert "may not be more than" in said or "should be less than or equal" in said


def _status(kind: str, path: str, value: Any) -> dict[str, Any]:
    """Return the smallest status with a value at a path, required siblings filled in."""
    schema = SCHEMAS[kind]["properties"]["status"]
    result: dict[str, Any] = {}
    inner = result
    *parents, last = path.split(".")[1:]
    for name in parents:
        schema = schema["properties"][name]
        inner[name] = {
            key: _simple(schema["properties"][key]) for key in schema.get("required", ())
        }
        inner = inner[name]
    inner[last] = value
    return result


def _simple(schema: dict[str, Any]) -> Any:
    if schema.get("format") == "date-time":
        return "2026-05-01T10:00:00Z"
    return {"integer": 0, "string": "x", "boolean": False}[schema["type"]]


def applied(kubectl: Kubectl, *source: str, stdin: str | None = None) -> dict[str, str]:
    """Apply objects and return their versions.

    What kubectl says is not enough: it calls each disruption budget configured, every time, since
    it sends the selector again, which the server does not count as a change.
    """
    items = json.loads(kubectl("apply", "-o", "json", *source, stdin=stdin))["items"]
    found = [(item["kind"], item["metadata"]) for item in items]
    return {
        f"{kind} {metadata.get('namespace')}/{metadata['name']}": metadata["resourceVersion"]
        for kind, metadata in found
    }


@pytest.mark.slow
@pytest.mark.proves("OP-06")
def test_kustomize_base_is_idempotent(kubectl: Kubectl) -> None:
    """A second apply that changes something fights with whoever applies the first."""
    first = applied(kubectl, "-k", str(MANIFESTS / "base"))
    assert applied(kubectl, "-k", str(MANIFESTS / "base")) == first


@pytest.mark.slow
@pytest.mark.proves("OP-06")
def test_chart_is_idempotent(kubectl: Kubectl, helm: str) -> None:
    """Helm upgrades without a change must not restart the operator."""
    command = [helm, "template", "rezone", str(REPOSITORY / "charts/rezone"), "-n", SYSTEM]
    command += ["--kube-version", "v1.34.0", "--skip-tests"]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(space))
    first = applied(kubectl, "-f", "-", stdin=rendered)
    assert applied(kubectl, "-f", "-", stdin=rendered) == first


@pytest.mark.slow
@pytest.mark.proves("OP-06", "OP-07")
def test_operator_may_do_what_it_must_and_no_more(kubectl: Kubectl) -> None:
    """A missing right shows only in production, one too many only in an audit.

    Without rights on the spec of what people apply, the operator cannot fight with their Git.
    """
    kubectl("apply", "-k", str(MANIFESTS / "base"))
    account = f"system:serviceaccount:{SYSTEM}:rezone-operator"

    def can(verb: str, what: str, *more: str) -> bool:
        resource, _, subresource = what.partition("/")
        question = ["auth", "can-i", verb, resource, f"--as={account}", *more]
        if subresource:
            question.append(f"--subresource={subresource}")
        return kubectl.run(*question).stdout.strip() == "yes"

    for verb, what in (
        ("update", "distributionzones.rezone.dev/status"),
        ("create", "rebalancetasks.rezone.dev"),
        ("patch", "regionmigrations.rezone.dev"),
        ("create", "pods"),
        ("list", "nodes"),
        ("create", "configmaps"),
        ("create", "events.events.k8s.io"),
    ):
        assert can(verb, what, "-n", "default"), (verb, what)
    assert can("update", "leases.coordination.k8s.io", "-n", SYSTEM)
    for verb, what in (
        ("get", "secrets"),
        ("create", "distributionzones.rezone.dev"),
        ("patch", "distributionzones.rezone.dev"),
        ("update", "distributionzones.rezone.dev"),
        ("patch", "rebalancetasks.rezone.dev"),
        ("update", "leases.coordination.k8s.io"),
        ("patch", "nodes"),
        ("patch", "pods"),
        ("patch", "pods/status"),
        ("create", "pods/exec"),
        ("patch", "pods/ephemeralcontainers"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
    ):
        assert not can(verb, what, "-n", "default"), (verb, what)


def test_rules_are_all_on_the_server(kubectl: Kubectl) -> None:
    """The server could have taken an older definition from another test run's apply."""
    items = json.loads(kubectl("get", "crd", "-o", "json"))["items"]
    for item in items:
        if item["spec"]["group"] == "rezone.dev":
            schema = item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            ours = SCHEMAS[item["spec"]["names"]["kind"]]
            stored = [r["message"] for _, n in nodes("", schema) for r in n.get(RULES, ())]
            wanted = [r["message"] for _, n in nodes("", ours) for r in n.get(RULES, ())]
            assert sorted(stored) == sorted(wanted)
