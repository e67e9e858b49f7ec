"""Events about pods, as `kubectl describe` shows them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from rezone.local.agent.records import now_text
from rezone.local.agent.settings import Services
from rezone.local.api import Json
from rezone.local.errors import ApiError

_COMPONENT = "rezone-local-agent"
_MESSAGE_MAX = 1000


def record_event(services: Services, pod: Json, reason: str, message: str) -> None:
    """Post an event in the background; one that is lost is no harm."""
    kind = "Normal" if reason in {"Started", "Killing"} else "Warning"
    task = asyncio.create_task(_post(services, pod, kind, reason, message))
    services.event_tasks.add(task)
    task.add_done_callback(services.event_tasks.discard)


async def _post(services: Services, pod: Json, kind: str, reason: str, message: str) -> None:
    metadata, now = pod["metadata"], now_text()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
        "involvedObject": {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "reason": reason,
        "message": message[:_MESSAGE_MAX],
        "type": kind,
        "source": {"component": _COMPONENT, "host": pod["spec"].get("nodeName", "")},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    path = f"/api/v1/namespaces/{metadata['namespace']}/events"
    with contextlib.suppress(ApiError):
        await services.api.create(path, event)
