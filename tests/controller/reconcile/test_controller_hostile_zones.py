"""Zones that would hurt: each is told so, none gets what it wants, and the others go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operated_cluster import (
    TestCluster,
    condition,
    fail_over,
    is_ready,
    make_zone,
    path_of,
    remove_zone,
    until_zone,
    zone_manifest,
)
from operator_process import OperatorProcess

from rezone.local.api import Json, KubeApi

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = "hostile"
ZONE = "kept"
NODES = ("worker-1", "worker-2", "worker-3")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
MINE = ("--namespace", NAMESPACE)
NAMELESS: Json = {"spec": {"volumes": [{"name": {}}]}}
PRIVILEGED = {"containers": [{"name": "data-node", "securityContext": {"privileged": True}}]}
TAKES_NO_POD = {"spec": {"tolerations": [{"operator": "Sometimes"}]}}
OPERATOR = {
    "REZONE_NAMESPACE": NAMESPACE,
    "REZONE_ZONES_IN_OWN_NAMESPACE": f"{ZONE},bad,deep",
}
"""It lives in the namespace of the zones, and takes some of them."""


def stalled(zone: Json) -> tuple[str, str]:
    """Return why a zone is Stalled."""
    found = condition(zone, "Stalled")
    return found.get("reason", ""), found.get("message", "")


def set_template(cluster: TestCluster, template: Any) -> None:
    """Change the zone's podTemplate, as its author would."""
    patch = {"spec": {"dataNodes": {"podTemplate": template}}}
    cluster.kubectl("patch", "dz", ZONE, *MINE, "--type=merge", f"--patch={json.dumps(patch)}")


async def refused(api: KubeApi, name: str, reason: str) -> str:
    """Wait until a zone is Stalled for a reason; nothing may have been made of it."""
    zone = await until_zone(api, NAMESPACE, name, lambda z: stalled(z)[0] == reason)
    labels = {"labelSelector": f"rezone.dev/zone={name}"}
    assert (await api.get(PODS, **labels))["items"] == []
    return stalled(zone)[1]


async def test_no_template_stops_the_failover_of_its_zone_or_others(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """One field of a podTemplate would keep a dead leader's partitions without a leader."""
    del operator
    zone = await make_zone(cluster, api, NAMESPACE, ZONE, NODES)
    cluster.label(NAMESPACE, "bad", *NODES)
    bad = zone_manifest(NAMESPACE, "bad")
    bad["spec"]["dataNodes"]["podTemplate"] = {"spec": PRIVILEGED}
    cluster.apply(bad)
    message = await refused(api, "bad", "InvalidTemplate")
    assert "spec.containers[data-node].securityContext may not be set" in message

    before = {pod["metadata"]["uid"] for pod in (await api.get(PODS))["items"]}
    for template in (TAKES_NO_POD, NAMELESS):
        set_template(cluster, template)
        wanted = "tolerations" if template is TAKES_NO_POD else "volumes"

        def says(zone: Json, wanted: str = wanted) -> bool:
            return wanted in stalled(zone)[1]

        zone = await until_zone(api, NAMESPACE, ZONE, says)
        assert stalled(zone)[0] == "InvalidTemplate"
        assert is_ready(zone)
    await fail_over(cluster, api, NAMESPACE, ZONE)
    set_template(cluster, None)
    await until_zone(api, NAMESPACE, ZONE, lambda z: is_ready(z) and not stalled(z)[0])
    assert before == {pod["metadata"]["uid"] for pod in (await api.get(PODS))["items"]}
    for name in ("bad", ZONE):
        await remove_zone(api, NAMESPACE, name)


async def test_a_deep_template_leaves_the_operator_watching(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """The watches of all zones would end with the first that is as deep as JSON may be."""
    cluster.label(NAMESPACE, "deep", *NODES)
    body = zone_manifest(NAMESPACE, "deep")
    body["spec"]["dataNodes"]["podTemplate"] = {"spec": "HERE"}
    deep = '{"x":' * 9_000 + "1" + "}" * 9_000
    path = path_of(NAMESPACE, "distributionzones")
    text = json.dumps(body).replace('"HERE"', deep)
    cluster.kubectl("create", "--raw", path, "--filename=-", stdin=text)
    # Read by kubectl: this process may not be able to.
    cluster.kubectl("wait", "dz/deep", *MINE, "--for=condition=Stalled", "--timeout=60s")
    reason = "--output=jsonpath={.status.conditions[?(@.type=='Stalled')].reason}"
    assert cluster.kubectl("get", "dz/deep", *MINE, reason) == "InvalidTemplate"
    await operator.until_ready()
    assert (await api.get(PODS, labelSelector="rezone.dev/zone=deep"))["items"] == []
    cluster.kubectl("delete", "dz/deep", *MINE)


async def test_a_zone_of_others_in_the_operator_s_namespace_gets_nothing(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """Its pods would be beside the key that signs for every zone."""
    del operator
    cluster.label(NAMESPACE, "stranger", *NODES)
    cluster.apply(zone_manifest(NAMESPACE, "stranger"))
    message = await refused(api, "stranger", "NamespaceRefused")
    assert "zonesInReleaseNamespace" in message
    names = {each["metadata"]["name"] for each in (await api.get(SERVICES))["items"]}
    assert "stranger" not in names
    await api.delete(f"{path_of(NAMESPACE, 'distributionzones')}/stranger")
