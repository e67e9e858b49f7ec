"""What the queue's keys are: a kind of ours, a namespace and a name."""

import enum
from typing import NamedTuple


class Kind(enum.StrEnum):
    """The kinds that are reconciled."""

    ZONE = "DistributionZone"
    TASK = "RebalanceTask"
    MIGRATION = "RegionMigration"


class ObjectKey(NamedTuple):
    """One object of ours."""

    kind: Kind
    namespace: str
    name: str


class ZoneKey(NamedTuple):
    """A zone by namespace and name."""

    namespace: str
    name: str

    @property
    def object_key(self) -> ObjectKey:
        """Return the zone's key in the queue."""
        return ObjectKey(Kind.ZONE, self.namespace, self.name)
