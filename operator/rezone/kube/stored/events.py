"""Kubernetes events: one per change, never a burden.

An event tells a person what happened; nothing may depend on it, so a failure to write one is
logged and forgotten. Its name follows from the object and the change, which makes a repeat, even
by the next operator process, the same event. A noisy object is cut off like by client-go.
"""

import collections
import enum
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ExistsError, KubeError
from rezone.kube.api.kinds import Event, Manifest
from rezone.kube.api.names import AnyObject, kind_of
from rezone.resources import API_VERSION

NOTE_CHARS_MAX = 1024
CONTROLLER = "rezone.dev/operator"

log = structlog.get_logger(__name__)


class EventType(enum.StrEnum):
    """The only two types Kubernetes knows."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, kw_only=True)
class EventLimits:
    """How many events are remembered, and how many one object may make."""

    remembered_changes_max: int = 4096
    remembered_objects_max: int = 1024
    burst_per_object: int = 25
    refill_seconds: float = 60.0


class EventRecorder:
    """Writes events; `instance` names this process in them, `now` is the clock (UTC)."""

    def __init__(
        self,
        kube: Kube,
        *,
        instance: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        limits: EventLimits | None = None,
    ) -> None:
        self._kube = kube
        self._instance = instance
        self._now = now
        self._limits = limits or EventLimits()
        self._seen: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._budget: collections.OrderedDict[str, tuple[float, datetime]] = (
            collections.OrderedDict()
        )

    async def emit(
        self,
        obj: AnyObject,
        event_type: EventType,
        reason: str,
        message: str,
        *,
        key: str | None = None,
        action: str = "Reconcile",
    ) -> bool:
        """Write an event about `obj`, once per `key`; return whether one was written.

        The key names the change, such as a state and its attempt; by default it is the object's
        generation, the reason and the message. Never raises for what the API server answers.
        """
        key = f"{obj.metadata.generation}/{reason}/{message}" if key is None else key
        name = _name(obj, key)
        if name in self._seen or not self._allowed(obj.metadata.uid):
            return False
        body = {
            **self._manifest(obj, name),
            "action": action,
            "type": event_type.value,
            "reason": reason,
            "note": message[:NOTE_CHARS_MAX],
        }
        try:
            await self._kube.create(Event, body)
        except ExistsError:
            self._remember(name)
            return False
        except KubeError as error:
            log.warning("writing event failed", reason=reason, error=str(error))
            return False
        self._remember(name)
        return True

    def _remember(self, name: str) -> None:
        self._seen[name] = None
        while len(self._seen) > self._limits.remembered_changes_max:
            self._seen.popitem(last=False)

    def _allowed(self, uid: str) -> bool:
        """Take one from the object's budget, which refills with time."""
        now = self._now()
        limit = float(self._limits.burst_per_object)
        left, since = self._budget.pop(uid, (limit, now))
        refilled = (now - since).total_seconds() / self._limits.refill_seconds
        left = min(limit, left + max(0.0, refilled))
        allowed = left >= 1.0
        self._budget[uid] = (left - 1.0 if allowed else left, now)
        while len(self._budget) > self._limits.remembered_objects_max:
            self._budget.popitem(last=False)
        return allowed

    def _manifest(self, obj: AnyObject, name: str) -> Manifest:
        meta = obj.metadata
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta.namespace},
            # MicroTime wants exactly six digits, so isoformat without a timespec would not do.
            "eventTime": self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": kind_of(obj),
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
        }


def _name(obj: AnyObject, key: str) -> str:
    digest = hashlib.sha256(f"{obj.metadata.uid}/{key}".encode()).hexdigest()[:16]
    return f"{obj.metadata.name[:200]}.{digest}"
