"""What a zone becomes in Kubernetes, and that a real API server takes it, strictest policy on."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_helpers import data_nodes, stored_zone, zone_of

from rezone.domain.access.template_policy import TemplatePolicy
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ExistsError, ForeignObjectError, InvalidWriteError
from rezone.kube.api.kinds import (
    Node,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    Service,
    ZoneKind,
)
from rezone.kube.api.names import require_owned
from rezone.kube.nodes.data_node import (
    PodSettings,
    build_claim,
    build_disruption_budget,
    build_pod,
    build_service,
    disruptions_allowed,
    selector,
    selector_text,
    template_hash,
)
from rezone.kube.nodes.pods import PodStore
from rezone.kube.nodes.template import MERGE_KEYS, fingerprint, merge
from rezone.local.api import KubeApi
from rezone.local.errors import ApiError

SETTINGS = PodSettings(image="registry.example/rezone:1")
EVERYTHING = TemplatePolicy.of(("*",), MERGE_KEYS)
CLAIM = {"volumeClaimTemplate": {"size": "10Gi", "storageClassName": "fast"}}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the data node's container."""
    return next(each for each in pod["spec"]["containers"] if each["name"] == "data-node")


# --- builders --------------------------------------------------------------------------------


def test_pod_is_found_again_by_its_labels() -> None:
    """Service, budget, /scale and the operator select by labels; a miss loses the pod for them."""
    zone = zone_of()
    labels = build_pod(zone, 4, SETTINGS)["metadata"]["labels"]
    assert labels["rezone.dev/node-id"] == "4"
    assert labels["app.kubernetes.io/managed-by"] == "rezone"
    assert selector("orders").items() <= labels.items()
    assert build_service(zone, SETTINGS)["spec"]["selector"] == selector("orders")
    budget = build_disruption_budget(zone, data_nodes=3)
    assert budget["spec"]["selector"]["matchLabels"] == selector("orders")
    parsed = dict(pair.split("=") for pair in selector_text("orders").split(","))
    assert parsed == selector("orders")


def test_pod_goes_with_its_zone() -> None:
    """Without the owner a deleted zone would leave its pods running for ever."""
    zone = zone_of(storage=CLAIM)
    for each in (build_pod(zone, 0, SETTINGS), build_claim(zone, 0), build_service(zone, SETTINGS)):
        assert each is not None
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("uid-orders", True)


def test_command_line_is_what_the_data_node_reads() -> None:
    """A data node that listens on the wrong address is never ready."""
    main = container(build_pod(zone_of(), 7, SETTINGS))
    assert main["command"] == ["rezone", "data-node"]
    pairs = dict(zip(main["args"][::2], main["args"][1::2], strict=True))
    assert pairs == {
        "--node-id": "7",
        "--data-dir": "/data",
        "--listen": "$(POD_IP):7400",
        "--health": "$(POD_IP):7401",
        "--zone": "orders",
    }
    assert main["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert main["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 7401}
    assert main["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_a_node_that_answers_late_is_left_alone() -> None:
    """Where processors are short, all nodes of a machine would be restarted, and be busier."""
    probe = container(build_pod(zone_of(), 7, SETTINGS))["livenessProbe"]
    assert probe["timeoutSeconds"] == 10
    assert probe["periodSeconds"] * probe["failureThreshold"] == 60


@pytest.mark.proves("OP-03")
def test_data_is_on_the_claim_when_the_zone_wants_one() -> None:
    """A pod with an emptyDir instead of its claim loses all rows with its first restart."""
    with_claim, without = zone_of(storage=CLAIM), zone_of()
    volumes = build_pod(with_claim, 2, SETTINGS)["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"]["claimName"] == "orders-2-data"
    claim = build_claim(with_claim, 2)
    assert claim is not None
    assert claim["metadata"]["name"] == "orders-2-data"
    assert claim["spec"]["storageClassName"] == "fast"
    assert build_claim(without, 2) is None
    assert build_pod(without, 2, SETTINGS)["spec"]["volumes"][0]["emptyDir"] == {}


@pytest.mark.proves("OP-03")
def test_pinned_pod_runs_on_its_node_only() -> None:
    """One pod per matching node is the promise of a node selector."""
    pod = build_pod(zone_of(), 1, SETTINGS, pinned_to="worker-3")
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["worker-3"]
    assert "affinity" not in build_pod(zone_of(), 1, SETTINGS)["spec"]


@pytest.mark.proves("OP-03")
def test_spread_never_makes_a_pod_unschedulable() -> None:
    """On nodes without zone labels DoNotSchedule would leave every pod pending."""
    spec = build_pod(zone_of(), 1, SETTINGS)["spec"]
    keys = {each["topologyKey"]: each for each in spec["topologySpreadConstraints"]}
    assert set(keys) == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert all(each["whenUnsatisfiable"] == "ScheduleAnyway" for each in keys.values())


def test_template_override_is_merged_by_name_and_cannot_take_the_labels() -> None:
    """An override that replaced the container list would run a pod without a data node."""
    template = {
        "metadata": {
            "labels": {"team": "a", "rezone.dev/zone": "stolen"},
            "annotations": {"note": "b"},
        },
        "spec": {
            "priorityClassName": "high",
            "containers": [
                {"name": "data-node", "resources": {"limits": {"memory": "8Gi"}}},
                {"name": "sidecar", "image": "x"},
            ],
        },
    }
    settings = dataclasses.replace(SETTINGS, template_policy=EVERYTHING)
    pod = build_pod(zone_of(dataNodes={"count": 3, "podTemplate": template}), 0, settings)
    assert pod["metadata"]["labels"]["rezone.dev/zone"] == "orders"
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "b"
    assert pod["spec"]["priorityClassName"] == "high"
    assert [each["name"] for each in pod["spec"]["containers"]] == ["data-node", "sidecar"]
    assert container(pod)["resources"]["limits"]["memory"] == "8Gi"
    assert container(pod)["resources"]["requests"]["cpu"] == "100m"
    assert container(pod)["command"] == ["rezone", "data-node"]


def test_template_hash_is_of_the_template_not_of_the_node() -> None:
    """Else all pods of a zone would look outdated, or none would after a change."""
    zone = zone_of()
    hashes = {
        build_pod(zone, node, SETTINGS, pinned_to=place)["metadata"]["annotations"][
            "rezone.dev/template-hash"
        ]
        for node, place in ((0, ""), (1, ""), (2, "worker"))
    }
    assert hashes == {template_hash(zone, SETTINGS)}
    other = PodSettings(image="registry.example/rezone:2")
    assert template_hash(zone, other) not in hashes


@pytest.mark.proves("B-07", "OP-03")
@pytest.mark.parametrize(
    ("replicas", "min_in_sync", "allowed"),
    [(3, 2, 1), (3, 1, 2), (5, 3, 2), (2, 1, 1), (2, 2, 0), (1, 1, 0), (3, 3, 0), (7, None, 3)],
)
def test_budget_leaves_every_partition_its_quorum(
    replicas: int, min_in_sync: int | None, allowed: int
) -> None:
    """One eviction too many and a partition refuses writes, or loses its only copy."""
    spec: dict[str, Any] = {"replicas": replicas}
    if min_in_sync is not None:
        spec["minInSyncReplicas"] = min_in_sync
    zone = zone_of(**spec)
    assert disruptions_allowed(zone, degraded=False) == allowed
    assert disruptions_allowed(zone, degraded=True) == 0
    for count in (replicas, 10):
        budget = build_disruption_budget(zone, data_nodes=count)["spec"]
        assert budget["minAvailable"] == count - allowed
        assert "maxUnavailable" not in budget
    degraded = build_disruption_budget(zone, data_nodes=10, degraded=True)["spec"]
    assert degraded["minAvailable"] == 10


def test_merge_removes_replaces_and_keeps_its_inputs() -> None:
    """A merge that changes its input would leak one zone's override into the next."""
    base = {"a": {"x": 1, "y": [1]}, "env": [{"name": "A", "value": "1"}], "gone": 1}
    kept = copy.deepcopy(base)
    override = {
        "a": {"y": [2]},
        "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}],
        "gone": None,
    }
    assert merge(base, override) == {
        "a": {"x": 1, "y": [2]},
        "env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}],
    }
    assert base == kept
    assert merge(base, None) == base


_json = st.recursive(
    st.integers() | st.text(max_size=4),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "env"]), inner) | st.lists(inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "env"]), _json))
def test_merge_with_itself_changes_nothing(value: dict[str, Any]) -> None:
    """A person may write down what is there already; that must not make pods outdated."""
    assert fingerprint(merge(value, value)) == fingerprint(value)


# --- on the real API server --------------------------------------------------------------------


@pytest.fixture
async def restricted(kube: KubeApi, namespace: str) -> str:
    """Return a namespace that enforces the restricted pod security standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await kube.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    return namespace


@pytest.mark.apiserver
@pytest.mark.slow
async def test_real_api_server_takes_all_under_the_restricted_policy(
    api: Kube, restricted: str
) -> None:
    """Many clusters enforce it; a field too few and no data node starts there."""
    zone = await stored_zone(api, restricted, storage=CLAIM)
    pod = build_pod(zone, 0, SETTINGS, pinned_to="worker")
    taken = await api.create(Pod, pod, dry_run=True)
    assert container(taken)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    claim = build_claim(zone, 0)
    assert claim is not None
    await api.create(PersistentVolumeClaim, claim, dry_run=True)
    await api.apply(Service, build_service(zone, SETTINGS), dry_run=True)
    await api.apply(PodDisruptionBudget, build_disruption_budget(zone, data_nodes=3), dry_run=True)
    assert await api.list(Pod, restricted) == []


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.proves("OP-03")
async def test_ensure_is_idempotent_and_complete(api: Kube, restricted: str) -> None:
    """Every pass calls it; a second pod or a lost claim would be a second or an empty replica."""
    zone = await stored_zone(api, restricted, storage=CLAIM)
    store = PodStore(api, SETTINGS)
    assert await store.ensure(zone, data_nodes(0, 1, 2)) == (0, 1, 2)
    before = await store.observe_pods(zone)
    assert await store.ensure(zone, data_nodes(0, 1, 2)) == ()
    assert await store.observe_pods(zone) == before
    assert [(view.node_id, view.name, view.ready) for view in before] == [
        (0, "orders-0", False),
        (1, "orders-1", False),
        (2, "orders-2", False),
    ]
    assert not any(view.outdated for view in before)
    names = {each["metadata"]["name"] for each in await api.list(PersistentVolumeClaim, restricted)}
    assert names == {"orders-0-data", "orders-1-data", "orders-2-data"}
    budget = await api.get(PodDisruptionBudget, restricted, "orders")
    assert budget["spec"]["minAvailable"] == 2
    newer = PodStore(api, PodSettings(image="registry.example/rezone:2"))
    assert await newer.ensure(zone, data_nodes(0, 1, 2)) == ()
    assert all(view.outdated for view in await newer.observe_pods(zone))


@pytest.mark.apiserver
@pytest.mark.slow
async def test_only_the_pod_that_was_chosen_is_deleted(api: Kube, namespace: str) -> None:
    """An operator that was about to lose its Lease would delete the pod that replaced it."""
    zone = await stored_zone(api, namespace, storage=CLAIM)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0))
    (old,) = await store.observe_pods(zone)
    assert await store.delete_pod(zone, 0, old.uid)
    assert not await store.delete_pod(zone, 0, old.uid), "it was gone"
    await store.ensure(zone, data_nodes(0))
    (new,) = await store.observe_pods(zone)
    assert new.uid != old.uid
    assert not await store.delete_pod(zone, 0, old.uid)
    assert await store.observe_pods(zone) == (new,)
    assert len(await api.list(PersistentVolumeClaim, namespace)) == 1, "its data stays"


@pytest.mark.apiserver
@pytest.mark.slow
async def test_a_pod_that_lost_its_claim_gets_another(api: Kube, namespace: str) -> None:
    """It could never be scheduled, and as it is there nothing would ever be made for it."""
    zone = await stored_zone(api, namespace, storage=CLAIM)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0))
    await api.merge(
        PersistentVolumeClaim, namespace, "orders-0-data", {"metadata": {"finalizers": None}}
    )
    await api.delete(PersistentVolumeClaim, namespace, "orders-0-data")
    assert await api.list(PersistentVolumeClaim, namespace) == []
    assert await store.ensure(zone, data_nodes(0)) == ()
    (claim,) = await api.list(PersistentVolumeClaim, namespace)
    assert claim["metadata"]["name"] == "orders-0-data"


class VanishingKube:
    """Says that every name is taken, and that nothing is there: all of it goes between the two."""

    async def find(self, *_: Any) -> None:
        """Return nothing."""

    async def create(self, *_: Any) -> None:
        """Refuse."""
        raise ExistsError("there")


async def test_what_went_while_it_was_looked_at_counts_as_missing() -> None:
    """A pod would be made without its claim, an old one of the same name that was just going."""
    store = PodStore(VanishingKube(), SETTINGS)  # type: ignore[arg-type]
    claim = build_claim(zone_of(storage=CLAIM), 0)
    assert claim is not None
    with pytest.raises(ForeignObjectError, match="a moment ago") as raised:
        await store._create(PersistentVolumeClaim, claim, zone_of())
    assert raised.value.going


@pytest.mark.apiserver
@pytest.mark.slow
async def test_growing_and_shrinking_zone_keeps_its_budget(api: Kube, namespace: str) -> None:
    """While pods come or go the budget must count every pod that may hold a replica."""
    zone = await stored_zone(api, namespace)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0, 1, 2))
    await store.ensure(zone, data_nodes(0, 1, 2, 3), degraded=True)
    assert await _min_available(api, namespace) == 4
    await store.ensure(zone, data_nodes(0, 1, 2))
    assert await _min_available(api, namespace) == 3, "pod 3 is still there"
    assert await store.delete_data_node(zone, 3)
    assert not await store.delete_data_node(zone, 3)
    await store.ensure(zone, data_nodes(0, 1, 2))
    assert await _min_available(api, namespace) == 2


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.proves("B-07")
async def test_the_budget_counts_a_node_in_maintenance_without_a_pod(
    api: Kube, namespace: str
) -> None:
    """A node whose pod waits for its Kubernetes node holds replicas all the same.

    One more pod could be evicted beside it, and a partition lose its quorum.
    """
    zone = await stored_zone(api, namespace)
    store = PodStore(api, SETTINGS)
    assert await store.ensure(zone, data_nodes(0, 1), awaited={2}) == (0, 1)
    assert await _min_available(api, namespace) == 2


async def _min_available(api: Kube, namespace: str) -> int:
    budget = await api.get(PodDisruptionBudget, namespace, "orders")
    return int(budget["spec"]["minAvailable"])


@pytest.mark.apiserver
@pytest.mark.slow
async def test_deleted_budget_comes_back(api: Kube, namespace: str) -> None:
    """A person's deletion must not leave the zone unprotected until the operator restarts."""
    zone = await stored_zone(api, namespace)
    time = [0.0]
    store = PodStore(api, SETTINGS, monotonic=lambda: time[0])
    await store.ensure(zone, data_nodes(0))
    await api.delete(PodDisruptionBudget, namespace, "orders")
    time[0] = 61.0
    await store.ensure(zone, data_nodes(0))
    assert await _min_available(api, namespace) == 0


@pytest.mark.apiserver
@pytest.mark.slow
async def test_foreign_objects_are_not_taken_over(api: Kube, namespace: str) -> None:
    """Server-side apply by force would silently make somebody's Service ours."""
    zone = await stored_zone(api, namespace)
    theirs = build_service(zone, SETTINGS)
    theirs["metadata"] |= {"ownerReferences": [], "labels": {"app": "theirs"}}
    await api.create(Service, theirs)
    with pytest.raises(ForeignObjectError, match="Service") as raised:
        await PodStore(api, SETTINGS).ensure(zone, data_nodes(0))
    assert not raised.value.going
    await api.delete(Service, namespace, "orders")
    pod = build_pod(zone, 0, SETTINGS)
    pod["metadata"]["ownerReferences"] = []
    await api.create(Pod, pod)
    store = PodStore(api, SETTINGS)
    assert await store.observe_pods(zone) == ()
    with pytest.raises(ForeignObjectError, match="Pod"):
        await store.ensure(zone, data_nodes(0))
    with pytest.raises(ForeignObjectError, match="Pod"):
        await store.delete_data_node(zone, 0)


def test_objects_of_an_earlier_zone_of_the_name_go_by_themselves() -> None:
    """A person would be told to delete what the garbage collector is about to take away."""
    left = build_service(zone_of(), SETTINGS)
    zone = zone_of()
    metadata = zone.metadata.model_copy(update={"uid": "uid-of-the-next"})
    zone = zone.model_copy(update={"metadata": metadata})
    with pytest.raises(ForeignObjectError, match="still being deleted") as raised:
        require_owned(left, zone)
    assert raised.value.going


@pytest.mark.apiserver
@pytest.mark.slow
async def test_bad_template_is_invalid_not_retried(api: Kube, namespace: str) -> None:
    """A podTemplate that Kubernetes refuses must surface at the zone, not spin."""
    template = {"spec": {"tolerations": [{"operator": "Sometimes"}]}}
    zone = await stored_zone(api, namespace, dataNodes={"count": 1, "podTemplate": template})
    with pytest.raises(InvalidWriteError, match="tolerations"):
        await PodStore(api, SETTINGS).ensure(zone, data_nodes(0))


@pytest.mark.apiserver
@pytest.mark.slow
async def test_observed_pod_tells_address_place_and_reason(
    api: Kube, kube: KubeApi, namespace: str
) -> None:
    """Peers are told by address, and a person asks why a pod waits (B-14)."""
    selector_spec = {"nodeSelector": {"disk": "ssd"}}
    zone = await stored_zone(api, namespace, dataNodes=selector_spec)
    store = PodStore(api, SETTINGS)
    await store.ensure(zone, data_nodes(0, 1, node_name="worker"))
    ready = {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    pending = {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes",
            },
        ],
    }
    for name, status in (("orders-0", ready), ("orders-1", pending)):
        await kube.patch(Pod.path(namespace, name, "status"), {"status": status})
    first, second = await store.observe_pods(zone)
    assert (first.address, first.ready, first.phase) == ("10.1.2.3:7400", True, "Running")
    assert first.waiting == ""
    assert (second.address, second.waiting) == ("", "Unschedulable: 0/1 nodes")
    pod = await api.get(Pod, namespace, "orders-0")
    assert "worker" in str(pod["spec"]["affinity"])


@pytest.mark.apiserver
@pytest.mark.slow
async def test_nodes_tell_cordon_and_readiness_apart(api: Kube, kube: KubeApi) -> None:
    """A node that is only not ready must not be drained like a cordoned one."""
    for name, cordoned, status in (
        ("n1", False, "True"),
        ("n2", True, "True"),
        ("n3", False, "False"),
    ):
        meta = {"name": name, "labels": {"disk": "ssd"}}
        made = {"metadata": meta, "spec": {"unschedulable": cordoned}}
        await kube.create(Node.path(None), made)
        conditions = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        await kube.patch(Node.path(None, name, "status"), conditions)
    found = await PodStore(api, SETTINGS).nodes()
    assert {name: (node.schedulable, node.ready) for name, node in found.items()} == {
        "n1": (True, True),
        "n2": (False, True),
        "n3": (True, False),
    }
    assert found["n1"].labels["disk"] == "ssd"
    for name in found:
        await kube.delete(Node.path(None, name))


@pytest.mark.apiserver
@pytest.mark.slow
async def test_zone_with_a_selector_has_no_scale(api: Kube, kube: KubeApi, namespace: str) -> None:
    """Why the budget is minAvailable: maxUnavailable is counted by /scale, which fails here."""
    await stored_zone(api, namespace, dataNodes={"nodeSelector": {"disk": "ssd"}})
    with pytest.raises(ApiError, match=r"\.spec\.dataNodes\.count.* does not exist"):
        await kube.get(ZoneKind.path(namespace, "orders", "scale"))
