"""Maintenance of data nodes: leaders leave, the data stays, and the node is not replaced.

A person asks for it in the zone (`dataNodes.maintenance`) or by an annotation on the Kubernetes
node, for a stated time. The request begins when the operator first sees it; both times stand in
the zone's status. It waits while it would leave a partition with too few in-sync replicas. While
it is active the node's leaders hand over as before a stop, plans leave its replicas where they
are, and it is not lost however long it is silent. When its time is over, or the request is gone,
the usual rules hold again.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from rezone.domain.model.world import ZoneView
from rezone.resources.conditions import Reason
from rezone.resources.zone import (
    MAINTENANCE_SECONDS_MAX,
    MAINTENANCE_SECONDS_MIN,
    DataNodesSpec,
)
from rezone.resources.zone_status import (
    DataNodeState,
    DataNodeStatus,
    MaintenanceState,
    MaintenanceStatus,
)
from rezone.wire.layouts import index_of
from rezone.wire.messages import NodeId, PartitionId

ANNOTATION: Final = "rezone.dev/maintenance"
"""On a Kubernetes node: for how long its data nodes are in maintenance, or until when."""

_DURATION = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?")
_EXAMPLES = "write a duration such as 90m or 1h30m, or a time such as 2026-01-31T18:00:00Z"


def until(text: str, since: datetime) -> datetime:
    """Return the end that an annotation asks for.

    Raises ValueError when it is neither a duration nor a time, or is too short or too long.
    """
    found = _DURATION.fullmatch(text)
    if text and found:
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        end = since + timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if end - since < timedelta(seconds=MAINTENANCE_SECONDS_MIN):
            raise ValueError(f"{text!r} is shorter than {MAINTENANCE_SECONDS_MIN} s")
    else:
        try:
            end = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither: {_EXAMPLES}") from None
        if end.tzinfo is None:
            raise ValueError(f"{text!r} has no time zone: {_EXAMPLES}")
        end = end.astimezone(UTC)
    if end - since > timedelta(seconds=MAINTENANCE_SECONDS_MAX):
        raise ValueError(f"{text!r} is longer than {MAINTENANCE_SECONDS_MAX // 86_400} days")
    return end.replace(microsecond=0)


def requested(
    node: DataNodeStatus, spec: DataNodesSpec, annotation: str, now: datetime
) -> MaintenanceStatus | None:
    """Return a node's maintenance as it is asked for now; the zone's word wins over the node's.

    A new request waits until `admitted` lets it begin. A bad annotation asks for nothing.
    """
    known = node.maintenance
    since = known.since_time if known is not None else now.replace(microsecond=0)
    seconds = next((m.duration_seconds for m in spec.maintenance if m.node == node.id), None)
    try:
        if seconds is not None:
            end = since + timedelta(seconds=seconds)
        elif annotation:
            end = until(annotation, since)
        else:
            return None
    except ValueError:
        return None
    state = known.state if known is not None else MaintenanceState.WAITING
    if end <= now:
        state = MaintenanceState.OVER
    elif state is MaintenanceState.OVER:
        state = MaintenanceState.WAITING  # its time was made longer
    waiting = known.waiting_for if known is not None and state is MaintenanceState.WAITING else ""
    return MaintenanceStatus(since_time=since, until_time=end, state=state, waiting_for=waiting)


def is_asked_for(node: DataNodeStatus) -> bool:
    """Return whether a node is in maintenance, or waits for it: a cordon does not drain it."""
    return node.maintenance is not None and node.maintenance.state is not MaintenanceState.OVER


def is_active(node: DataNodeStatus) -> bool:
    """Return whether a node is in maintenance."""
    return node.maintenance is not None and node.maintenance.state is MaintenanceState.ACTIVE


def kept_ids(nodes: Iterable[DataNodeStatus]) -> frozenset[NodeId]:
    """Return the nodes whose replicas plans leave alone."""
    return frozenset(n.id for n in nodes if is_asked_for(n) and n.state is DataNodeState.ACTIVE)


def active_ids(nodes: Iterable[DataNodeStatus]) -> tuple[NodeId, ...]:
    """Return the nodes that are in maintenance, in order."""
    return tuple(sorted(n.id for n in nodes if is_active(n)))


def ends_in(nodes: Iterable[DataNodeStatus], now: datetime) -> float:
    """Return after how many seconds the next maintenance is over, infinity without one."""
    ends = [n.maintenance.until_time for n in nodes if n.maintenance is not None]
    left = [(end - now).total_seconds() for end in ends]
    return min((seconds for seconds in left if seconds > 0), default=math.inf)


def admitted(nodes: Sequence[DataNodeStatus], view: ZoneView) -> tuple[DataNodeStatus, ...]:
    """Return the nodes, those that wait and may safely be away in maintenance from now on.

    One after the other: each counts those that are in maintenance already as away.
    """
    away = set(active_ids(nodes))
    after = []
    for node in nodes:
        wanted = node.maintenance
        if wanted is None or wanted.state is not MaintenanceState.WAITING:
            after.append(node)
            continue
        why = _unsafe(view, node.id, away)
        if not why:
            away.add(node.id)
        state = MaintenanceState.WAITING if why else MaintenanceState.ACTIVE
        update = {"state": state, "waiting_for": why}
        after.append(
            node.model_copy(update={"maintenance": wanted.model_copy(update=update)}),
        )
    return tuple(after)


def _unsafe(view: ZoneView, node: NodeId, away: set[NodeId]) -> str:
    """Return why a node may not be away, "" when every partition can spare it."""
    for partition, record in view.routes.items():
        if record.sealed or node not in record.replicas:
            continue
        rest = [n for n in record.isr if n != node and n not in away and _serves(view, n)]
        if len(rest) < view.min_in_sync:
            return _too_few(partition, rest, view.min_in_sync)
    return ""


def _too_few(partition: PartitionId, rest: Sequence[NodeId], minimum: int) -> str:
    left = f"only data nodes {rest}" if rest else "no data node"
    return (
        f"partition {index_of(partition)} would have {left} in sync, "
        f"and minInSyncReplicas is {minimum}"
    )


def _serves(view: ZoneView, node: NodeId) -> bool:
    seen = view.nodes.get(node)
    return seen is not None and seen.reachable and not (seen.leaving or seen.lost)


@dataclasses.dataclass(frozen=True)
class Told:
    """What the zone says about maintenance: whether a node is in it, why in a word, and all."""

    active: bool
    reason: Reason
    message: str


def told(
    nodes: Sequence[DataNodeStatus],
    spec: DataNodesSpec,
    annotations: Mapping[str, str],
    view: ZoneView,
    now: datetime,
) -> Told | None:
    """Return what there is to say about maintenance, None when nobody has asked for any.

    `annotations` are those of the Kubernetes nodes by name.
    """
    leading = {record.leader for record in view.routes.values()}
    texts, reason = [], Reason.MAINTENANCE
    for node in nodes:
        if node.maintenance is not None:
            texts.append(_text(node, node.maintenance, leads=node.id in leading))
            if node.maintenance.state is MaintenanceState.WAITING:
                reason = Reason.MAINTENANCE_UNSAFE
    wrong = _problems(nodes, spec, annotations, now)
    if wrong:
        reason = Reason.INVALID_MAINTENANCE
    texts += wrong
    if not texts:
        return None
    return Told(bool(active_ids(nodes)), reason, "; ".join(texts))


def _text(node: DataNodeStatus, wanted: MaintenanceStatus, *, leads: bool) -> str:
    end = f"{wanted.until_time:%Y-%m-%dT%H:%M:%SZ}"
    name = f"data node {node.id} on {node.node_name or '-'}"
    if wanted.state is MaintenanceState.OVER:
        return f"{name} was in maintenance until {end}: the usual rules hold"
    if wanted.state is MaintenanceState.WAITING:
        return f"{name} waits for maintenance until {end}: {wanted.waiting_for}"
    ready = "its leaders leave" if leads else "it leads nothing and may stop"
    return f"{name} is in maintenance until {end}: {ready}"


def _problems(
    nodes: Sequence[DataNodeStatus],
    spec: DataNodesSpec,
    annotations: Mapping[str, str],
    now: datetime,
) -> list[str]:
    known = {node.id for node in nodes}
    found = [
        f"dataNodes.maintenance names data node {each.node}, which is not there"
        for each in spec.maintenance
        if each.node not in known
    ]
    for place in sorted({node.node_name for node in nodes}):
        text = annotations.get(place, "")
        try:
            if text:
                until(text, now)
        except ValueError as error:
            found.append(f"Kubernetes node {place}, annotation {ANNOTATION}: {error}")
    return found
