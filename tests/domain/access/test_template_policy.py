"""What the author of a zone may set in its templates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.domain.access.template_policy import (
    DEPTH_MAX,
    POD_FIELDS,
    SPARK_FIELDS,
    VALUES_MAX,
    TemplatePolicy,
)
from rezone.kube.nodes.template import MERGE_KEYS

PODS = TemplatePolicy.of(POD_FIELDS, MERGE_KEYS)
SPARK = TemplatePolicy.of(SPARK_FIELDS, MERGE_KEYS)


def container(**fields: Any) -> dict[str, Any]:
    """Return a template that changes the data node's container."""
    return {"spec": {"containers": [{"name": "data-node", **fields}]}}


@pytest.mark.parametrize(
    "template",
    [
        None,
        {},
        {"metadata": {"labels": {"team": "a"}, "annotations": {"prometheus.io/scrape": "true"}}},
        {"spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]}},
        {"spec": {"securityContext": {"runAsUser": None, "fsGroup": 1000710000}}},
        {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]}},
        container(resources={"limits": {"memory": "8Gi"}}),
        container(env=[{"name": "REZONE_NODE_LEASE_MS", "value": "3000"}]),
        container(startupProbe={"failureThreshold": 900}),
    ],
)
def test_what_documents_name_may_be_set(template: Any) -> None:
    """Zones as the documents show them would have no pods."""
    assert PODS.fault(template) == ""


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
        ({"spec": {"hostPID": True}}, "spec.hostPID"),
        ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName"),
        ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
        ({"spec": {"nodeName": "control-plane"}}, "spec.nodeName"),
        ({"spec": {"initContainers": [{"name": "x"}]}}, "spec.initContainers"),
        ({"spec": {"containers": [{"name": "x", "image": "x"}]}}, "spec.containers[x]"),
        ({"spec": {"containers": None}}, "spec.containers"),
        ({"spec": {"securityContext": None}}, "spec.securityContext"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "spec.securityContext.runAsNonR"),
        ({"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}, "spec.volumes[h]"),
        (
            {"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]}},
            "spec.volumes[tmp].hostPath",
        ),
        (
            {"spec": {"volumes": [{"name": "tmp", "secret": {"secretName": "x"}}]}},
            "spec.volumes[tmp].secret",
        ),
        (container(securityContext={"privileged": True}), "spec.containers[data-node].security"),
        (container(securityContext=None), "spec.containers[data-node].securityContext"),
        (container(image="evil"), "spec.containers[data-node].image"),
        (container(command=["sh"]), "spec.containers[data-node].command"),
        (container(lifecycle={}), "spec.containers[data-node].lifecycle"),
        (container(livenessProbe={"exec": {}}), "spec.containers[data-node].livenessProbe.exec"),
        (container(env=[{"name": "LD_PRELOAD", "value": "x"}]), "env[LD_PRELOAD]"),
        (
            container(env=[{"name": "REZONE_NODE_LEASE_MS", "valueFrom": {"secretKeyRef": {}}}]),
            "env[REZONE_NODE_LEASE_MS].valueFrom",
        ),
        (container(envFrom=[{"secretRef": {"name": "x"}}]), "spec.containers[data-node].envFrom"),
        ({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "x"}}}, "annotations[k8s.v1"),
        ({"metadata": {"labels": {"azure.workload.identity/use": "true"}}}, "labels[azure.wo"),
        ({"metadata": {"finalizers": ["x"]}}, "metadata.finalizers"),
        ({"spec": {"volumes": [{"name": {}}]}}, "spec.volumes[]"),
        ({"spec": {"volumes": [[]]}}, "spec.volumes[]"),
        ({"spec": {"volumes": {"tmp": {"emptyDir": {}}}}}, "spec.volumes"),
        ({"spec": []}, "spec"),
        ("text", "the template"),
    ],
)
def test_what_would_be_more_than_a_zone_is_refused_by_name(template: Any, named: str) -> None:
    """Who may create zones would have the node, other accounts, or Secrets of the namespace."""
    fault = PODS.fault(template)
    assert named in fault
    assert fault.endswith("may not be set")


def test_spark_s_template_has_a_policy_of_its_own() -> None:
    """Spark's pods would mount what data nodes' may not; sizes and places are free."""
    sizes = {"driver": {"memory": "1g"}, "executor": {"instances": 4, "cores": 2}}
    assert SPARK.fault({**sizes, "sparkConf": {"spark.task.maxFailures": "4"}}) == ""
    for conf in (
        "spark.kubernetes.driver.volumes.hostPath.x.mount.path",
        "spark.kubernetes.driver.secrets.any",
        "spark.kubernetes.authenticate.driver.serviceAccountName",
        "spark.driver.extraJavaOptions",
        "spark.jars",
    ):
        assert f"sparkConf[{conf}]" in SPARK.fault({"sparkConf": {conf: "x"}})
    for field in ("mainApplicationFile", "arguments", "image", "volumes", "deps", "sparkConf"):
        assert field in SPARK.fault({field: None})
    assert "driver.serviceAccount" in SPARK.fault({"driver": {"serviceAccount": "admin"}})


def test_an_operator_may_allow_more() -> None:
    """An installation with sidecars would have to build its own operator."""
    wider = TemplatePolicy.of(
        (*POD_FIELDS, "spec.volumes[*].configMap", "spec.containers[proxy]"), MERGE_KEYS
    )
    sidecar = {"containers": [{"name": "proxy", "image": "x"}]}
    volumes = [{"name": "c", "configMap": {"name": "c"}}]
    assert wider.fault({"spec": {**sidecar, "volumes": volumes}}) == ""
    assert "spec.volumes[c].secret" in wider.fault(
        {"spec": {"volumes": [{"name": "c", "secret": {"secretName": "s"}}]}}
    )
    everything = TemplatePolicy.of(("*",), MERGE_KEYS)
    assert everything.fault({"spec": {"hostNetwork": True}}) == ""


@pytest.mark.parametrize("field", ["", "spec.", ".spec", "spec[", "spec.a b", "spec.[x]", "spec,a"])
def test_what_is_no_field_ends_the_operator_at_its_start(field: str) -> None:
    """A misspelt setting would be found out only when somebody needs it."""
    with pytest.raises(ValueError, match="no field"):
        TemplatePolicy.of((field,), MERGE_KEYS)


def test_size_and_depth_have_limits_even_where_everything_may_be_set() -> None:
    """Each pass looks at all of it; a deep one would end the pass by a RecursionError."""
    deep: Any = {}
    for _ in range(100_000):
        deep = {"spec": deep}
    everything = TemplatePolicy.of(("*",), MERGE_KEYS)
    for policy in (PODS, everything):
        assert f"{DEPTH_MAX} levels" in policy.fault(deep)
        assert f"{VALUES_MAX} values" in policy.fault({"spec": {"x": [0] * 5_000}})
    while deep:  # or its end would recurse as deep
        deep = deep.pop("spec")


_NAMES = st.sampled_from(["metadata", "spec", "containers", "volumes", "name", "env", "data-node"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | _NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.text(), inner),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_has_an_answer(template: Any) -> None:
    """An exception here would be one in each pass of the zone, failover included."""
    for policy in (PODS, SPARK, TemplatePolicy.of(("*",), MERGE_KEYS)):
        fault = policy.fault(template)
        assert fault.isprintable()
