"""A zone's templates are hostile input: no pass fails for one, and no pod is given up for one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kube_helpers import data_nodes, stored_zone, task_of, zone_of

from rezone.domain.access.template_policy import TemplatePolicy
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ForbiddenError, InvalidTemplateError, InvalidWriteError
from rezone.kube.api.kinds import Kind, Manifest, Pod
from rezone.kube.jobs.spark import SparkSettings, build_application
from rezone.kube.nodes.data_node import PodSettings, build_pod
from rezone.kube.nodes.pods import PodStore
from rezone.kube.nodes.template import MERGE_KEYS
from rezone.resources.zone import DistributionZone

SETTINGS = PodSettings(image="registry.example/rezone:1")
EVERYTHING = dataclasses.replace(SETTINGS, template_policy=TemplatePolicy.of(("*",), MERGE_KEYS))
RESOURCE_QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas")
NAMELESS: dict[str, Any] = {"spec": {"volumes": [{"name": {}}]}}


def changed(zone: DistributionZone, template: Any) -> DistributionZone:
    """Return the zone as it would be read with another podTemplate."""
    nodes = zone.spec.data_nodes.model_copy(update={"pod_template": template})
    return zone.model_copy(update={"spec": zone.spec.model_copy(update={"data_nodes": nodes})})


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        {"spec": {"containers": [{"name": "data-node", "securityContext": {"privileged": True}}]}},
        {"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}},
        {"spec": {"serviceAccountName": "admin"}},
    ],
)
async def test_the_api_server_stores_it_and_no_pod_is_made(
    api: Kube, namespace: str, template: Any
) -> None:
    """Who may create a zone would have a privileged pod, a node's files, or another account."""
    zone = await stored_zone(api, namespace, dataNodes={"count": 1, "podTemplate": template})
    store = PodStore(api, SETTINGS)
    with pytest.raises(InvalidTemplateError, match="may not be set"):
        await store.ensure(zone, data_nodes(0))
    assert await store.observe_pods(zone) == ()


@pytest.mark.apiserver
@pytest.mark.slow
async def test_pods_are_observed_and_not_outdated_under_any_template(
    api: Kube, namespace: str
) -> None:
    """Each pass of the zone begins with this: failover would end with a template of one field."""
    zone = await stored_zone(api, namespace)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0))
    for template in (NAMELESS, {"spec": None}, {"spec": {"containers": [{"name": ["a"]}]}}):
        (pod,) = await store.observe_pods(changed(zone, template))
        assert (pod.node_id, pod.outdated) == (0, False)
        assert store.template_of(changed(zone, template)) == ""
        assert await store.ensure(changed(zone, template), data_nodes(0)) == ()


@pytest.mark.apiserver
@pytest.mark.slow
async def test_a_pod_without_the_number_of_a_data_node_is_nobody_s(
    api: Kube, namespace: str
) -> None:
    """Who may patch a label of a pod would end the passes of its zone."""
    zone = await stored_zone(api, namespace)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0, 1))
    for value in ("x", "1.0", None):
        patch = {"metadata": {"labels": {"rezone.dev/node-id": value}}}
        await api.merge(Pod, namespace, "orders-1", patch)
        assert [pod.node_id for pod in await store.observe_pods(zone)] == [0]


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"spec": {"tolerations": [{"operator": "Sometimes"}]}}, "tolerations"),
        ({"spec": {"nodeSelector": ["a"]}}, "nodeSelector"),
        ({"spec": {"terminationGracePeriodSeconds": "soon"}}, "terminationGracePeriodSeconds"),
        ({"spec": {"priorityClassName": "no-such"}}, "no-such"),
    ],
)
async def test_the_api_server_is_asked_before_a_pod_is_given_up(
    api: Kube, namespace: str, template: Any, named: str
) -> None:
    """A rolling update would delete a pod whose successor nobody can make."""
    zone = await stored_zone(api, namespace)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0))
    wanted = changed(zone, template)
    pods = await store.observe_pods(wanted)
    assert [pod.outdated for pod in pods] == [True]
    with pytest.raises((InvalidWriteError, ForbiddenError), match=named):
        await store.check_template(wanted, pods)
    good = changed(zone, {"spec": {"terminationGracePeriodSeconds": 60}})
    await store.check_template(good, await store.observe_pods(good))
    assert [p["metadata"]["name"] for p in await api.list(Pod, namespace)] == ["orders-0"]


async def until_full(api: Kube, pod: Manifest) -> None:
    """Wait until the API server has heard of the quota, and takes no pod more."""
    async with asyncio.timeout(60):
        while True:
            try:
                await api.create(Pod, pod, dry_run=True)
            except ForbiddenError:
                return
            await asyncio.sleep(0.1)


@pytest.mark.apiserver
@pytest.mark.slow
async def test_a_full_quota_does_not_hold_an_update(api: Kube, namespace: str) -> None:
    """A namespace with room for its pods and no more would never be updated."""
    zone = await stored_zone(api, namespace)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0))
    quota = {
        "metadata": {"name": "full", "namespace": namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    made = await api.create(RESOURCE_QUOTA, quota)
    # No controller of quotas runs here, and the API server goes by the status.
    full = {"hard": {"pods": "0"}, "used": {"pods": "1"}}
    await api.replace_status(RESOURCE_QUOTA, {**made, "status": full})
    await until_full(api, build_pod(zone, 1, SETTINGS))
    wanted = changed(zone, {"spec": {"terminationGracePeriodSeconds": 60}})
    await store.check_template(wanted, await store.observe_pods(wanted))


_NAMES = st.sampled_from(
    ["metadata", "labels", "spec", "containers", "volumes", "name", "env", "data-node", "data"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=16,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), _JSON))
@example(NAMELESS)
def test_any_template_gives_a_pod_or_is_invalid(template: Any) -> None:
    """Another exception would end each pass of the zone, even where everything may be set."""
    zone = zone_of(dataNodes={"count": 1, "podTemplate": template})
    for settings in (SETTINGS, EVERYTHING):
        with contextlib.suppress(InvalidTemplateError):
            pod = build_pod(zone, 0, settings)
            assert pod["metadata"]["labels"]["rezone.dev/node-id"] == "0"


def test_spark_s_template_is_checked_like_the_pods() -> None:
    """Its pods could be privileged, and its application of another account."""
    templates: list[dict[str, Any]] = [
        {"driver": {"serviceAccount": "admin"}},
        {"volumes": [{"name": {}}]},
    ]
    for template in templates:
        zone = zone_of(transfer={"sparkTemplate": template})
        with pytest.raises(InvalidTemplateError, match="sparkTemplate"):
            build_application("a", zone, task_of(zone), "[]", SparkSettings(image="i"))
