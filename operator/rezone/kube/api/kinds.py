"""The kinds of objects that are read and written, and where the API server has them."""

from dataclasses import dataclass
from typing import Any

from rezone.resources import GROUP, VERSION
from rezone.resources.meta import CrdMeta
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""


@dataclass(frozen=True)
class Kind:
    """One kind of object; `group` is empty for the core kinds."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What its objects have as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, of all of a namespace, or (None) of all there are.

        Raises ValueError when a namespaced object has no namespace.
        """
        if self.namespaced and name and not namespace:
            raise ValueError(f"a {self.name} needs a namespace")
        root = f"/apis/{self.group}" if self.group else "/api"
        within = f"namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = (root, self.version, within, self.plural, name, subresource)
        return "/".join(part for part in parts if part)


Pod = Kind("", "v1", "Pod", "pods")
Service = Kind("", "v1", "Service", "services")
ConfigMap = Kind("", "v1", "ConfigMap", "configmaps")
Secret = Kind("", "v1", "Secret", "secrets")
PersistentVolumeClaim = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
Node = Kind("", "v1", "Node", "nodes", namespaced=False)
PodDisruptionBudget = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
Lease = Kind("coordination.k8s.io", "v1", "Lease", "leases")
Event = Kind("events.k8s.io", "v1", "Event", "events")
CertificateRequest = Kind(
    "certificates.k8s.io",
    "v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
    namespaced=False,
)
AccessReview = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
"""A question, of which nothing is kept."""


def _custom(crd: CrdMeta) -> Kind:
    return Kind(GROUP, VERSION, crd.kind, crd.plural)


ZoneKind = _custom(DistributionZone.crd)
TaskKind = _custom(RebalanceTask.crd)
MigrationKind = _custom(RegionMigration.crd)
SparkApplication = Kind("sparkoperator.k8s.io", "v1beta2", "SparkApplication", "sparkapplications")
