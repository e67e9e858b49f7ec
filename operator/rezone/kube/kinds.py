"""The kinds of objects that are read and written, all as JSON.

The core kinds are declared here and not taken from lightkube's models, so that fields those models
do not know survive a read and a write.
"""

from typing import Any

from lightkube.core.resource import ApiInfo, ResourceDef
from lightkube.generic_resource import (
    GenericGlobalResource,
    GenericGlobalStatus,
    GenericNamespacedResource,
    create_api_info,
    create_namespaced_resource,
)

from rezone.resources import GROUP, VERSION
from rezone.resources.meta import CrdMeta
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""

Kind = type[GenericNamespacedResource] | type[GenericGlobalResource]
NamespacedKind = type[GenericNamespacedResource]


_CERTIFICATES = ("certificates.k8s.io", "v1", "CertificateSigningRequest")


def _subresource(action: str) -> ApiInfo:
    kind = ResourceDef(*_CERTIFICATES)
    return ApiInfo(
        resource=kind,
        parent=kind,
        plural="certificatesigningrequests",
        verbs=["get", "patch", "put"],
        action=action,
    )


class Pod(GenericNamespacedResource):
    """v1 Pod."""

    _api_info = create_api_info("", "v1", "Pod", "pods")


class Service(GenericNamespacedResource):
    """v1 Service."""

    _api_info = create_api_info("", "v1", "Service", "services")


class ConfigMap(GenericNamespacedResource):
    """v1 ConfigMap."""

    _api_info = create_api_info("", "v1", "ConfigMap", "configmaps")


class Secret(GenericNamespacedResource):
    """v1 Secret."""

    _api_info = create_api_info("", "v1", "Secret", "secrets")


class PersistentVolumeClaim(GenericNamespacedResource):
    """v1 PersistentVolumeClaim."""

    _api_info = create_api_info("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")


class Node(GenericGlobalResource):
    """v1 Node."""

    _api_info = create_api_info("", "v1", "Node", "nodes", verbs=["get", "list", "watch"])


class PodDisruptionBudget(GenericNamespacedResource):
    """policy/v1 PodDisruptionBudget."""

    _api_info = create_api_info("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")


class Lease(GenericNamespacedResource):
    """coordination.k8s.io/v1 Lease."""

    _api_info = create_api_info("coordination.k8s.io", "v1", "Lease", "leases")


class Event(GenericNamespacedResource):
    """events.k8s.io/v1 Event."""

    _api_info = create_api_info("events.k8s.io", "v1", "Event", "events")


class CertificateRequestApproval(GenericGlobalStatus):
    """What a CertificateSigningRequest is approved or denied by."""

    _api_info = _subresource("approval")


class CertificateRequestStatus(GenericGlobalStatus):
    """Where a signer puts the certificate."""

    _api_info = _subresource("status")


class CertificateRequest(GenericGlobalResource):
    """certificates.k8s.io/v1 CertificateSigningRequest."""

    _api_info = create_api_info(
        *_CERTIFICATES, "certificatesigningrequests", verbs=["get", "list", "watch", "post"]
    )
    Status = CertificateRequestStatus


class AccessReview(GenericGlobalResource):
    """authorization.k8s.io/v1 SubjectAccessReview: a question, of which nothing is kept."""

    _api_info = create_api_info(
        "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", verbs=["post"]
    )


def _custom(crd: CrdMeta) -> NamespacedKind:
    return create_namespaced_resource(GROUP, VERSION, crd.kind, crd.plural)


ZoneKind = _custom(DistributionZone.crd)
TaskKind = _custom(RebalanceTask.crd)
MigrationKind = _custom(RegionMigration.crd)
SparkApplication = create_namespaced_resource(
    "sparkoperator.k8s.io",
    "v1beta2",
    "SparkApplication",
    "sparkapplications",
)
