"""What documents for programs have in common, and what is read from all statuses."""

from rezone.resources.conditions import Condition, ConditionedStatus, ConditionType
from rezone.resources.model import Model

API_VERSION = "cli.rezone.dev/v1alpha1"


class Document(Model):
    """What one command shows."""

    api_version: str = API_VERSION
    kind: str


def condition(status: ConditionedStatus | None, kind: ConditionType) -> Condition | None:
    """Return one condition, None when the status does not have it."""
    return next((c for c in status.conditions if c.type is kind), None) if status else None
