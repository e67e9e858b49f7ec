"""What a zone consists of in Kubernetes: pure builders, no I/O.

A data node is one Pod `<zone>-<id>` with its claim `<zone>-<id>-data`; ids are never used again,
so neither is a name. There is no StatefulSet: it would only take away its highest ordinal, and a
rebalance must be able to give up any node. All nodes of a zone share a headless Service and one
disruption budget.

A person's `dataNodes.podTemplate` is merged as `rezone.kube.nodes.template` says, as far as the
installation's policy lets it. The labels and the owner, by which pods are found again, win over it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rezone.domain.access.template_policy import TemplatePolicy
from rezone.kube.api.errors import InvalidTemplateError
from rezone.kube.api.kinds import Manifest
from rezone.kube.api.names import (
    DATA_NODE,
    NODE_ID_LABEL,
    TEMPLATE_HASH,
    ZONE_LABEL,
    labels_of,
    owner_reference,
)
from rezone.kube.nodes.template import POD_POLICY, fingerprint, merge
from rezone.kube.tls.certificates import NodeNames, secret_name
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import NodeId
from rezone.wire.transport.identity import Role
from rezone.wire.transport.tls import DIRECTORY_VARIABLE

CONTAINER = "data-node"
DATA_PATH = "/data"
TLS_PATH = "/etc/rezone/tls"
_ANYWHERE = ({"name": "REZONE_NODE_PLAINTEXT_ANYWHERE", "value": "true"},)
"""Who has turned TLS off for an installation has said so."""

_SHARED = ({"name": "REZONE_NODE_SHARED_NAMES_ACCEPTED", "value": "true"},)

USER_ID = 65532  # "nonroot" of distroless images
# A node that shall stop serves until others have taken its place: its own limit is a minute.
GRACE_SECONDS = 90


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What the zone does not say: how this installation runs data nodes."""

    image: str
    image_pull_policy: str = "IfNotPresent"
    service_account: str = "default"
    port: int = 7400
    health_port: int = 7401
    # A start replays the log's tail, which takes longer the more was written at once.
    startup_seconds_max: int = 600
    tls: bool = False
    names: NodeNames = NodeNames.OWN
    template_policy: TemplatePolicy = POD_POLICY
    resources: Mapping[str, Any] = field(
        default_factory=lambda: {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
    )


def pod_name(zone: str, node: NodeId) -> str:
    """Return the name of a data node's pod."""
    return f"{zone}-{node}"


def claim_name(zone: str, node: NodeId) -> str:
    """Return the name of a data node's volume claim."""
    return f"{zone}-{node}-data"


def selector(zone: str) -> dict[str, str]:
    """Return the labels that select the pods of a zone, and nothing else."""
    return {
        "app.kubernetes.io/name": "rezone",
        "app.kubernetes.io/component": DATA_NODE,
        ZONE_LABEL: zone,
    }


def selector_text(zone: str) -> str:
    """Return `selector` in the form of status.selector, which /scale hands to autoscalers."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(zone).items()))


def build_pod(
    zone: DistributionZone,
    node: NodeId,
    settings: PodSettings,
    *,
    pinned_to: str = "",
) -> Manifest:
    """Return the pod of a data node; `pinned_to` names the Kubernetes node it must run on.

    Raises InvalidTemplateError when the zone's podTemplate cannot be used.
    """
    meta = zone.metadata
    labels = {**labels_of(meta.name, DATA_NODE), NODE_ID_LABEL: str(node)}
    template = _merged(zone, node, settings)
    if pinned_to:
        template["spec"] = merge(template["spec"], {"affinity": _pin(pinned_to)})
    extra = template["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(meta.name, node),
            "namespace": meta.namespace,
            "labels": {**(extra.get("labels") or {}), **labels},
            "annotations": {
                **(extra.get("annotations") or {}),
                TEMPLATE_HASH: template_hash(zone, settings),
            },
            "ownerReferences": [owner_reference(zone)],
        },
        "spec": template["spec"],
    }


def template_hash(zone: DistributionZone, settings: PodSettings) -> str:
    """Return the hash of what all pods of the zone have in common.

    A pod whose annotation differs runs an older template, and is replaced by a rolling update.
    Whatever changes the hash restarts every pod of every zone: a new image of the installation
    does, and so does a change of what is built here. Raises InvalidTemplateError.
    """
    return fingerprint(_merged(zone, 0, settings))


def _merged(zone: DistributionZone, node: NodeId, settings: PodSettings) -> Manifest:
    """Return the template with the zone's merged in. Raises InvalidTemplateError."""
    wanted = zone.spec.data_nodes.pod_template
    if fault := settings.template_policy.fault(wanted):
        raise InvalidTemplateError(f"spec.dataNodes.podTemplate: {fault}")
    merged = merge(_template(zone, node, settings), wanted)
    metadata = merged.setdefault("metadata", {})
    maps = {"metadata": metadata, "spec": merged.get("spec")}
    if isinstance(metadata, Mapping):
        maps["metadata.labels"] = metadata.get("labels", {})
        maps["metadata.annotations"] = metadata.get("annotations", {})
    if wrong := [name for name, value in maps.items() if not isinstance(value, Mapping)]:
        raise InvalidTemplateError(f"spec.dataNodes.podTemplate: {wrong[0]} must be a map")
    return merged


def build_claim(zone: DistributionZone, node: NodeId) -> Manifest | None:
    """Return the data node's claim, None when its data lives and dies with the pod.

    It belongs to the zone, not to the pod: a new pod of the same node finds its data, and the end
    of the zone is the end of its data.
    """
    wanted = zone.spec.storage.volume_claim_template
    if wanted is None:
        return None
    meta = zone.metadata
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": wanted.size}},
    }
    if wanted.storage_class_name is not None:
        spec["storageClassName"] = wanted.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(meta.name, node),
            "namespace": meta.namespace,
            "labels": {**labels_of(meta.name, DATA_NODE), NODE_ID_LABEL: str(node)},
            "ownerReferences": [owner_reference(zone)],
        },
        "spec": spec,
    }


def build_service(zone: DistributionZone, settings: PodSettings) -> Manifest:
    """Return the headless Service by which clients find any data node to ask for routes.

    Pods that are not ready are published too: a leader that cannot be reached by name could not
    hand over, and clients follow the route table, not readiness.
    """
    meta = zone.metadata
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _shared_metadata(zone),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(meta.name),
            "ports": [
                {"name": "flight", "port": settings.port, "targetPort": settings.port},
            ],
        },
    }


def disruptions_allowed(zone: DistributionZone, *, degraded: bool) -> int:
    """Return how many data nodes may be evicted at once without a partition losing its quorum.

    No partition has two replicas on one node, so n evicted nodes cost it at most n of `replicas`,
    of which minInSyncReplicas must stay. While the zone is degraded some partition has used up
    part of that already, and none may go.

    It is 0 when replicas equals minInSyncReplicas (a single replica, for one). Then no eviction
    is ever granted: `kubectl drain` cordons the node and waits, the operator moves the node's
    partitions off because it is cordoned, and deletes the empty pod itself, which no budget
    forbids. So a drain takes as long as the moves, and ends.
    """
    return 0 if degraded else max(0, zone.spec.replicas - zone.spec.min_in_sync)


def build_disruption_budget(
    zone: DistributionZone,
    *,
    data_nodes: int,
    degraded: bool = False,
) -> Manifest:
    """Return the budget of a zone that has its replicas on `data_nodes` nodes (B-07).

    Written as minAvailable = data_nodes - disruptions_allowed, though maxUnavailable would seem
    to say it better: for that the disruption controller takes the number of pods from the owner's
    /scale. With a node selector the zone has no count there, and no eviction is granted at all.
    While a zone scales down, count is already the small number though the pods to be emptied
    still hold replicas: of five pods with count 3 and maxUnavailable 1 it granted three
    evictions at once (seen with kube-controller-manager 1.34).

    `data_nodes` are all that hold or shall hold replicas, lost and draining ones included; when in
    doubt the larger number.
    """
    allowed = disruptions_allowed(zone, degraded=degraded)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _shared_metadata(zone),
        "spec": {
            "minAvailable": max(0, data_nodes - allowed),
            "selector": {"matchLabels": selector(zone.metadata.name)},
            # A pod is Ready when all its replicas are in sync, so one that lags keeps the others.
            # One that is not may hold the newest copy of something: it counts as well.
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        },
    }


def _shared_metadata(zone: DistributionZone) -> Manifest:
    meta = zone.metadata
    return {
        "name": meta.name,
        "namespace": meta.namespace,
        "labels": labels_of(meta.name, DATA_NODE),
        "ownerReferences": [owner_reference(zone)],
    }


def _template(zone: DistributionZone, node: NodeId, settings: PodSettings) -> Manifest:
    return {
        "metadata": {},
        "spec": {
            "serviceAccountName": settings.service_account,
            # A data node never talks to the API server.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [
                _spread(zone, zone.spec.data_nodes.failure_domain_key),
                _spread(zone, "kubernetes.io/hostname"),
            ],
            "containers": [_container(zone, node, settings)],
            "volumes": [
                _data_volume(zone, node),
                {"name": "tmp", "emptyDir": {}},
                *([_tls_volume(zone, node, settings)] if settings.tls else ()),
            ],
        },
    }


def _container(zone: DistributionZone, node: NodeId, settings: PodSettings) -> Manifest:
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["rezone", "data-node"],
        "args": [
            *("--node-id", str(node)),
            *("--data-dir", DATA_PATH),
            *("--listen", f"$(POD_IP):{settings.port}"),
            *("--health", f"$(POD_IP):{settings.health_port}"),
            *("--zone", zone.metadata.name),
        ],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *([{"name": DIRECTORY_VARIABLE, "value": TLS_PATH}] if settings.tls else _ANYWHERE),
            *(_SHARED if settings.tls and settings.names is not NodeNames.OWN else ()),
        ],
        "ports": [
            {"name": "flight", "containerPort": settings.port},
            {"name": "health", "containerPort": settings.health_port},
        ],
        "startupProbe": _probe(
            settings,
            "/healthz",
            period_seconds=2,
            failures=max(1, settings.startup_seconds_max // 2),
        ),
        "readinessProbe": _probe(settings, "/readyz", period_seconds=2, failures=2),
        # Failover waits for none of these. A node without processor time answers late, and would
        # only be later for a restart: its replicas would have to catch up besides.
        "livenessProbe": _probe(
            settings, "/healthz", period_seconds=10, failures=6, timeout_seconds=10
        ),
        "resources": dict(settings.resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": DATA_PATH},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own volume
            *([{"name": "tls", "mountPath": TLS_PATH, "readOnly": True}] if settings.tls else ()),
        ],
    }


def _probe(
    settings: PodSettings,
    path: str,
    *,
    period_seconds: int,
    failures: int,
    timeout_seconds: int = 2,
) -> Manifest:
    return {
        "httpGet": {"path": path, "port": settings.health_port},
        "periodSeconds": period_seconds,
        "timeoutSeconds": timeout_seconds,
        "failureThreshold": failures,
    }


def _data_volume(zone: DistributionZone, node: NodeId) -> Manifest:
    if zone.spec.storage.volume_claim_template is None:
        return {"name": "data", "emptyDir": {}}
    claim = claim_name(zone.metadata.name, node)
    return {"name": "data", "persistentVolumeClaim": {"claimName": claim}}


def _tls_volume(zone: DistributionZone, node: NodeId, settings: PodSettings) -> Manifest:
    # The pod waits until the Secret is there. Files are read by the pod's group alone.
    own = None if settings.names is NodeNames.SHARED else node
    name = secret_name(zone.metadata.name, Role.DATA_NODE, own)
    return {"name": "tls", "secret": {"secretName": name, "defaultMode": 0o440}}


def _spread(zone: DistributionZone, key: str) -> Manifest:
    # Anyway: nodes without the label (a laptop, a small cluster) must be usable. That replicas of
    # one partition are apart is the planner's promise, not the scheduler's.
    return {
        "topologyKey": key,
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(zone.metadata.name)},
    }


def _pin(node_name: str) -> Manifest:
    # By affinity and not by spec.nodeName, so that the scheduler still checks resources.
    fields = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [fields]}],
            },
        },
    }
