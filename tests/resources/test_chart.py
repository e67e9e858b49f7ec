"""The chart and the overlays as users install them: real Helm and kustomize, a real server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_server import NAMESPACE, REPOSITORY, Kubectl
from test_constraints import manifest

from rezone.cli.check import check
from rezone.controller.coordination.metrics import OperatorMetrics
from rezone.controller.work.settings import CoordinatorSettings
from rezone.datanode.node.node import DataNode
from rezone.datanode.observing.health import registry_of
from rezone.kube.api.names import TRANSFER, labels_of
from rezone.kube.nodes.data_node import PodSettings, build_pod
from rezone.resources import NAMESPACE as SYSTEM
from rezone.resources.packaging import OVERLAYS, render, without_helm
from rezone.resources.zone import DistributionZone

pytestmark = pytest.mark.proves("OP-06")

Json = dict[str, Any]
CHART = REPOSITORY / "charts" / "rezone"
MANIFESTS = REPOSITORY / "manifests"
CONSOLE = (
    "console.enabled=true",
    "console.origin=https://rezone.example.com",
    "console.proxy.image=proxy:1",
    "console.proxy.ports[0].name=proxy",
    "console.proxy.ports[0].containerPort=8443",
)
EVERYTHING = (
    "networkPolicy.enabled=true",
    "podMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "audit.enabled=true",
    "tls.certManager.policy=true",
    "dashboards.enabled=true",
    "sparkOperator.enabled=true",
    *CONSOLE,
    "watchNamespaces={resources-test}",
)
TARGET = ("rezone_dev_zone", "rezone_dev_node_id")
"""Labels that the PodMonitor adds."""


def monitoring(kind: str) -> dict[str, Any]:
    """Return a definition for a kind of the Prometheus operator that takes any fields."""
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "x-kubernetes-preserve-unknown-fields": True,
                        },
                    },
                },
            ],
        },
    }


MONITORING = (monitoring("PodMonitor"), monitoring("PrometheusRule"))


def sets(*values: str) -> list[str]:
    """Return Helm's arguments for values."""
    return [argument for value in values for argument in ("--set", value)]


def chart(helm: str, *values: str) -> list[Json]:
    """Return what the chart renders with values."""
    return [document for _, document in render(CHART, helm, sets(*values))]


def of_kind(documents: list[Json], kind: str, name: str = "") -> list[Json]:
    """Return the objects of a kind whose name ends so."""
    found = [d for d in documents if d["kind"] == kind]
    return [d for d in found if d["metadata"]["name"].endswith(name)]


def matches(selector: Json, labels: dict[str, str]) -> bool:
    """Return whether a label selector selects labels."""
    exact = selector.get("matchLabels", {}).items() <= labels.items()
    rules = selector.get("matchExpressions", ())
    return exact and all(labels.get(rule["key"]) in rule["values"] for rule in rules)


@pytest.fixture
def data_node() -> Json:
    """Return the pod of a data node."""
    metadata = {"name": "orders", "namespace": "shop", "uid": "u"}
    spec = {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}}
    zone = DistributionZone.parse({"metadata": metadata, "spec": spec})
    return dict(build_pod(zone, 0, PodSettings(image="x")))


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_the_chart_with_the_example_values(
    kubectl: Kubectl, helm: str, overlay: str
) -> None:
    """Users of kustomize and of Helm would get different operators by the same name."""
    built = yaml.safe_load_all(kubectl("kustomize", str(MANIFESTS / "overlays" / overlay)))
    values = ["-f", str(CHART / "examples" / f"{overlay}.yaml")]
    rendered = [without_helm(document) for _, document in render(CHART, helm, values)]
    assert by_name(d for d in built if d["kind"] != "Namespace") == by_name(rendered)


def by_name(documents: Iterator[Json] | list[Json]) -> dict[tuple[str, str, str], Json]:
    """Return the objects by kind, namespace and name."""
    found = {}
    for document in documents:
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for each in pod.get("containers", ()):
            each["env"].sort(key=lambda item: item["name"])  # kustomize puts patched ones first
        metadata = document["metadata"]
        found[document["kind"], metadata.get("namespace", ""), metadata["name"]] = document
    return found


@pytest.mark.slow
@pytest.mark.apiserver
def test_server_takes_every_object(kubectl: Kubectl, helm: str) -> None:
    """A field that the server does not know, or a wrong one, shows only when somebody installs."""
    names = [each["metadata"]["name"] for each in MONITORING]
    kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(MONITORING))
    kubectl("wait", "--for=condition=Established", "crd", *names)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(space))
    command = [helm, "template", "rezone", str(CHART), "-n", SYSTEM, "--kube-version", "v1.34.0"]
    command += sets(*EVERYTHING)
    texts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout]
    texts += [kubectl("kustomize", str(MANIFESTS / "overlays" / each)) for each in OVERLAYS]
    try:
        for text in texts:
            wanted = [d for d in yaml.safe_load_all(text) if d is not None]
            # A pod is refused before its account exists, even in a dry run.
            accounts = {
                "apiVersion": "v1",
                "kind": "List",
                "items": of_kind(wanted, "ServiceAccount"),
            }
            kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(accounts))
            dry = ("apply", "--server-side", "--force-conflicts", "--dry-run=server")
            said = kubectl(*dry, "--validate=strict", "-f", "-", stdin=text)
            assert said.count("serverside-applied") == len(wanted)
    finally:
        kubectl("delete", "crd", *names, "--wait=false")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("replica=2", "additional properties 'replica' not allowed"),
        ("replicas=two", "at '/replicas': got string, want integer"),
        ("image.pullpolicy=Always", "at '/image': additional properties 'pullpolicy'"),
        ("image.repository=", "at '/image/repository': minLength"),
        ("logLevel=trace", "must be one of 'debug', 'info', 'warning', 'error'"),
        ("watchNamespaces={Team_A}", "at '/watchNamespaces/0': 'Team_A' does not match"),
        ("settings.leaderLeaseSecond=2", "additional properties 'leaderLeaseSecond'"),
        ("settings.leaseDurationSeconds=0", "minimum: got 0, want 1"),
        ("resources.limit.memory=1Gi", "at '/resources': additional properties 'limit'"),
        ("resources.limits.memory=lots", "at '/resources/limits/memory': 'lots' does not match"),
        ("networkPolicy.clients=all", "got string, want array"),
        ("networkPolicy.apiServerPorts={0}", "minimum: got 0, want 1"),
        ("podDisruptionBudget=true", "at '/podDisruptionBudget': got boolean, want object"),
        ("tolerations[0].efect=NoSchedule", "additional properties 'efect' not allowed"),
        ("podMonitor.intervalSeconds=30s", "got string, want integer"),
        ("test.timeoutSeconds=1", "minimum: got 1, want 10"),
        ("tls.issuer=nobody", "at '/tls/issuer'"),
        ("tls.certManager.account='ann'", "at '/tls/certManager/account'"),
        ("tls.enabled=yes-please", "at '/tls/enabled': got string, want boolean"),
        ("console.origin=http://a.example", "at '/console/origin'"),
        ("console.enabled=true", "at '/console/proxy': missing property 'image'"),
        ("crds.install=true", "at '/crds': additional properties 'install' not allowed"),
    ],
)
def test_wrong_values_are_refused(helm: str, value: str, says: str) -> None:
    """A misspelt value would be ignored, and its user would believe in it."""
    with pytest.raises(RuntimeError, match=re.escape(says)):
        render(CHART, helm, ["--set", value])


def test_settings_have_the_operators_types() -> None:
    """The chart would take 2.5 where the operator reads a whole number, and not start."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    whole = {f.name for f in dataclasses.fields(CoordinatorSettings) if f.type is int}
    for name, found in schema["properties"]["settings"]["properties"].items():
        definition = found
        if "$ref" in found:
            definition = schema["definitions"][found["$ref"].rpartition("/")[2]]
        field = re.sub("([A-Z])", r"_\1", name).lower()
        assert (definition["type"] == "integer") == (field in whole), name


def test_two_operators_with_a_budget_are_the_default(helm: str) -> None:
    """One operator is a gap at every node upgrade; a budget for one blocks every drain."""
    usual, single = chart(helm), chart(helm, "replicas=1")
    assert of_kind(usual, "Deployment")[0]["spec"]["replicas"] == 2
    (budget,) = of_kind(usual, "PodDisruptionBudget")
    pods = of_kind(usual, "Deployment")[0]["spec"]["template"]["metadata"]["labels"]
    assert matches(budget["spec"]["selector"], pods)
    assert of_kind(single, "PodDisruptionBudget") == []
    (lease,) = of_kind(usual, "Role", "-election")
    assert lease["rules"][0]["resources"] == ["leases"]


def test_an_operator_that_gets_no_processor_time_is_not_killed_for_it(helm: str) -> None:
    """Each start would take as long as the one before, and no leader be replaced for minutes.

    A start took 45 s at a load of 20 for each processor, and more than a minute at 40.
    """
    pod = of_kind(chart(helm), "Deployment")[0]["spec"]["template"]["spec"]
    probes = pod["containers"][0]
    startup, liveness = probes["startupProbe"], probes["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == PodSettings.startup_seconds_max
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    assert liveness["timeoutSeconds"] == liveness["periodSeconds"]


@pytest.mark.proves("B-12")
def test_tls_is_on_and_says_where_certificates_come_from(helm: str) -> None:
    """An installation would speak plaintext because nobody said anything, or wait for nobody."""

    def operator(*values: str) -> tuple[dict[str, str], list[str], set[str]]:
        documents = chart(helm, *values)
        pod = of_kind(documents, "Deployment", "-operator")[0]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        environment = {e["name"]: e.get("value", "") for e in container["env"]}
        volumes = [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
        roles = [*of_kind(documents, "Role"), *of_kind(documents, "ClusterRole")]
        rules = [rule for role in roles for rule in role["rules"] if "secrets" in rule["resources"]]
        return environment, volumes, {verb for rule in rules for verb in rule["verbs"]}

    environment, volumes, verbs = operator()
    assert CoordinatorSettings.from_environment(environment).tls == "issued"
    assert volumes == []
    assert verbs == {"get", "create", "update"}
    environment, volumes, verbs = operator("tls.issuer=secrets")
    assert CoordinatorSettings.from_environment(environment).tls == "provided"
    assert environment["REZONE_TLS_DIRECTORY"] == "/etc/rezone/tls"
    assert volumes == ["rezone-operator-tls"]
    assert verbs == set()
    environment, volumes, verbs = operator("tls.enabled=false")
    assert CoordinatorSettings.from_environment(environment).tls == "off"
    assert (volumes, verbs) == ([], set())


def test_secrets_may_be_written_where_zones_may_live(helm: str) -> None:
    """Zones of some namespaces would wait for certificates, or all Secrets would lie open."""
    for values in (("zoneNamespaces={a,b}",), ("watchNamespaces={a,b}",)):
        documents = chart(helm, *values)
        bound = of_kind(documents, "RoleBinding", "-certificates")
        assert {d["metadata"]["namespace"] for d in bound} == {SYSTEM, "a", "b"}
        assert {d["subjects"][0]["namespace"] for d in bound} == {SYSTEM}
    assert of_kind(chart(helm, "tls.issuer=secrets"), "RoleBinding", "-certificates") == []


def test_policies_select_the_pods_and_ports_there_are(helm: str, data_node: Json) -> None:
    """A policy with a misspelt label or port cuts the operator off, or does nothing."""
    documents = chart(helm, *EVERYTHING)
    operator = of_kind(documents, "Deployment", "-operator")[0]["spec"]["template"]
    labels = data_node["metadata"]["labels"]
    ports = {p["name"]: p["containerPort"] for p in data_node["spec"]["containers"][0]["ports"]}
    (for_operator,) = of_kind(documents, "NetworkPolicy", "-operator")
    assert matches(for_operator["spec"]["podSelector"], operator["metadata"]["labels"])
    _names, to_nodes, to_operator = for_operator["spec"]["egress"]
    assert matches(to_nodes["to"][0]["podSelector"], labels)
    assert [p["port"] for p in to_nodes["ports"]] == [ports["flight"]]
    health = [p["containerPort"] for p in operator["spec"]["containers"][0]["ports"]]
    (by_metrics_and_operator,) = for_operator["spec"]["ingress"]
    assert [p["port"] for p in by_metrics_and_operator["ports"]] == health
    assert to_operator["ports"] == by_metrics_and_operator["ports"]
    for peer in (to_operator["to"][0], by_metrics_and_operator["from"][0]):
        assert matches(peer["podSelector"], operator["metadata"]["labels"])
    policies = of_kind(documents, "NetworkPolicy", "-data-nodes")
    assert {p["metadata"]["namespace"] for p in policies} == {SYSTEM, NAMESPACE}
    for policy in policies:
        assert matches(policy["spec"]["podSelector"], labels)
        rows, metrics = policy["spec"]["ingress"]
        assert [p["port"] for p in rows["ports"]] == [ports["flight"]]
        assert [p["port"] for p in metrics["ports"]] == [ports["health"]]
        by_operator, by_peers, *_clients = rows["from"]
        assert matches(by_operator["podSelector"], operator["metadata"]["labels"])
        assert matches(by_peers["podSelector"], labels)
        assert matches(by_peers["podSelector"], labels_of("orders", TRANSFER))
        _names, to_peers = policy["spec"]["egress"]
        assert matches(to_peers["to"][0]["podSelector"], labels)
        assert to_peers["ports"] == rows["ports"]
    assert of_kind(chart(helm), "NetworkPolicy") == []


def test_monitor_finds_the_pods_with_metrics(helm: str, data_node: Json) -> None:
    """Prometheus says nothing about a monitor that selects nothing."""
    documents = chart(helm, *EVERYTHING)
    (monitor,) = of_kind(documents, "PodMonitor")
    operator = of_kind(documents, "Deployment", "-operator")[0]["spec"]["template"]
    for pod in (operator, data_node):
        assert matches(monitor["spec"]["selector"], pod["metadata"]["labels"])
        names = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in names
    target = set(monitor["spec"]["podTargetLabels"])
    assert target <= data_node["metadata"]["labels"].keys()
    assert of_kind(chart(helm), "PodMonitor") == []


def test_dashboards_show_every_metric_and_no_other(helm: str, tmp_path: Path) -> None:
    """A panel of a metric that was renamed stays empty, which looks like peace."""
    (board,) = of_kind(chart(helm, *EVERYTHING), "ConfigMap", "-dashboards")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    boards = {name: json.loads(text) for name, text in board["data"].items()}
    assert len({each["uid"] for each in boards.values()}) == len(boards)
    panels = [panel for each in boards.values() for panel in each["panels"]]
    assert all(panel["type"] == "row" or panel["description"].endswith(".") for panel in panels)
    texts = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    shown = {
        name for text in texts for name in re.findall(r"rezone_\w+", text) if name not in TARGET
    }
    with contextlib.closing(DataNode(0, tmp_path)) as node:
        node.open()
        registry = registry_of(node)
        OperatorMetrics(registry)
        told = {metric.name for metric in registry.collect()}
    assert {re.sub("_(total|bucket|sum|count)$", "", name) for name in shown} == told
    assert of_kind(chart(helm), "ConfigMap") == []


@pytest.mark.slow
@pytest.mark.apiserver
@pytest.mark.parametrize("watched", [(), ("watchNamespaces={resources-test}",)])
def test_helm_test_may_run_its_command(
    kubectl: Kubectl, helm: str, watched: tuple[str, ...]
) -> None:
    """`helm test` would fail for want of a right, or ask the command for an unknown option."""
    command = [helm, "template", "rezone", str(CHART), "-n", NAMESPACE, "--kube-version", "v1.34.0"]
    text = subprocess.run(
        [*command, *sets(*watched)], capture_output=True, text=True, check=True
    ).stdout
    hooks = [
        d
        for d in yaml.safe_load_all(text)
        if d and (d["metadata"].get("annotations") or {}).get("helm.sh/hook") == "test"
    ]
    (pod,) = of_kind(hooks, "Pod")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["rezone", check.name]
    asked = check.make_context("check", list(container["args"])).params
    assert asked["namespace"] == NAMESPACE
    assert asked["timeout_seconds"] < pod["spec"]["activeDeadlineSeconds"]
    for each in hooks:
        if each["kind"] != "Pod":
            kubectl("apply", "-f", "-", stdin=json.dumps(each))
    account = f"--as=system:serviceaccount:{NAMESPACE}:{pod['spec']['serviceAccountName']}"
    zone = json.dumps({**manifest("DistributionZone", {}), "metadata": {"name": asked["name"]}})
    where = ("-n", NAMESPACE, account)
    kubectl(*where, "create", "-f", "-", stdin=zone)
    kubectl(*where, "get", "dz", asked["name"])
    kubectl(*where, "delete", "dz", asked["name"], "--wait=false")
    assert kubectl.run(*where, "get", "pods").returncode != 0


@pytest.mark.slow
@pytest.mark.apiserver
@pytest.mark.timeout(240)
def test_upgrade_brings_the_definitions_and_uninstall_keeps_zones(
    kubectl: Kubectl, helm: str, tmp_path: Path
) -> None:
    """Helm leaves crds/ as it was: a new operator would meet old rules; or all zones would go."""
    before = tmp_path / "rezone"
    shutil.copytree(CHART, before)
    definition = before / "templates" / "crds" / "distributionzones.rezone.dev.yaml"
    rule = "has(self.count) != has(self.nodeSelector)"
    text = definition.read_text()
    assert rule in text
    definition.write_text(text.replace(rule, "has(self.count) || has(self.nodeSelector)"))

    def run(*arguments: str) -> str:
        environment = {**os.environ, "HELM_CACHE_HOME": str(tmp_path)}
        program = [helm, f"--kubeconfig={kubectl.kubeconfig}", "-n", NAMESPACE]
        done = subprocess.run(
            [*program, *arguments], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stored_rules() -> str:
        # Not the annotations: an earlier apply may have left the whole definition in one.
        return kubectl("get", "crd", "distributionzones.rezone.dev", "-o", "jsonpath={.spec}")

    # The session's definitions are there already, and not Helm's.
    notes = run("install", "upgraded", str(before), "--take-ownership")
    assert "helm test upgraded" in notes
    # Tests of the session that came before may have defined it.
    spark = kubectl.run("get", "crd", "sparkapplications.sparkoperator.k8s.io").returncode == 0
    assert ("spark-operator is not installed" in notes) != spark
    assert rule not in stored_rules()
    zone = {**manifest("DistributionZone", {}), "metadata": {"name": "kept"}}
    kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(zone))
    run("upgrade", "upgraded", str(CHART))
    assert rule in stored_rules()
    run("uninstall", "upgraded")
    assert rule in stored_rules()
    assert "kept" in kubectl("-n", NAMESPACE, "get", "dz", "-o", "name")
    kubectl("-n", NAMESPACE, "delete", "dz", "kept", "--wait=false")
