"""What the queue's keys are: a kind, a namespace and a name."""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Kind(enum.StrEnum):
    """The kinds that are reconciled: ours, and requests for certificates (of no namespace)."""

    ZONE = "DistributionZone"
    TASK = "RebalanceTask"
    MIGRATION = "RegionMigration"
    CERTIFICATE_REQUEST = "CertificateSigningRequest"


class ObjectKey(NamedTuple):
    """One object that is reconciled."""

    kind: Kind
    namespace: str
    name: str


class Wake(Protocol):
    """Wakes an object's reconcile: a watch tells of a resourceVersion, or another's change does."""

    def __call__(self, key: ObjectKey, version: str = "", *, gone: bool = False) -> None:
        """Wake it; `gone` when the watch tells of its end."""


def owning_tasks(namespace: str, body: Mapping[str, Any]) -> list[ObjectKey]:
    """Return the tasks that an object is made for: they wait for what becomes of it."""
    owners = body.get("metadata", {}).get("ownerReferences", ())
    return [
        ObjectKey(Kind.TASK, namespace, owner["name"])
        for owner in owners
        if owner.get("kind") == Kind.TASK
    ]


class ZoneKey(NamedTuple):
    """A zone by namespace and name."""

    namespace: str
    name: str

    @property
    def object_key(self) -> ObjectKey:
        """Return the zone's key in the queue."""
        return ObjectKey(Kind.ZONE, self.namespace, self.name)
