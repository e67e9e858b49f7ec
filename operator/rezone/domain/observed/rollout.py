"""The rolling update of a zone's pods: which pod is replaced next, and whether any may be.

A pod is outdated when it was made from another template than the zone has now: image, resources,
`dataNodes.podTemplate`, settings of the installation. Outdated pods are replaced one at a time,
and all of a failure domain before those of the next. A pod that is told to stop hands its leaders
over before it does (`handover`), so replacing it is noticed by nobody; the next one follows when
all its replicas are in sync again.

    choose a pod -> written to status.rollout -> deleted -> made again -> caught up -> the next

The first pods get most leaders and the last one none, so at the end a RebalanceTask of type
Leaders evens them out. The status stays until that task is there: a restart makes no second one.

`decide` is pure and total. The choice is persisted with the pod's uid before the pod is deleted:
a restarted operator knows whether the pod it finds is the old one, to be deleted again, or the
new one, to be waited for. A new pod that does not catch up in time stops the update, and so does
any other data node that does not: it may have been made from a template that never starts. The
update goes on when the pod does, or with it when the template changes again.

A rebalance and an update do not mix: no pod is chosen while an assignment is pending. A rebalance
that begins meanwhile goes on beside the one pod that is being replaced.
"""

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta

from rezone.domain.model.world import ZoneView
from rezone.resources.zone import UpdateMode, UpdateStrategySpec
from rezone.resources.zone_status import RolloutStatus
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenPod:
    """A data node's pod; `serving`: the node answers and is not told to stop."""

    node: NodeId
    uid: str
    outdated: bool
    deleting: bool = False
    serving: bool = True
    failure_domain: str = ""
    waiting: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """What an update depends on.

    `nodes` are the data nodes the zone wants, with a pod or without one just now. `lagging` are
    those with a replica that is not in sync, `counted` those that may have to lead a
    partition, `sole` those that are alone in one. `ephemeral`: a pod's rows go with the pod.
    `tasks` names the zone's RebalanceTasks; while a node is in `maintenance`, or the zone is
    `paused`, none is replaced. `refused`: no pod can be made of the template, so all wait.
    """

    template_hash: str
    strategy: UpdateStrategySpec
    nodes: frozenset[NodeId]
    pods: tuple[SeenPod, ...]
    lagging: frozenset[NodeId]
    counted: frozenset[NodeId]
    sole: frozenset[NodeId]
    ephemeral: bool
    rebalancing: bool
    maintenance: frozenset[NodeId] = frozenset()
    paused: bool = False
    refused: bool = False
    tasks: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutDecision:
    """The next status, the pod to be deleted once that is written, and why the update stands.

    `held`: by the spec; `stuck`: a person must look. `even_out` names the task to be made.
    """

    status: RolloutStatus | None = None
    delete: SeenPod | None = None
    even_out: str = ""
    held: bool = False
    stuck: str = ""
    wake_seconds: float = float("inf")


NOTHING = RolloutDecision()
_REFUSED = "the template cannot be used; the condition Stalled says why"


def lagging_nodes(view: ZoneView) -> frozenset[NodeId]:
    """Return the nodes with a replica that is not in sync, as far as anybody says.

    Not of a partition that is sealed: nobody waits for it. The record alone may be of before a
    restart: the node itself must say that it has its rows, and the leader that it has heard from
    it since.
    """
    return frozenset(
        node
        for partition, record in view.routes.items()
        if not record.sealed
        for node in record.replicas
        if not _is_in_sync(view, partition, record, node)
    )


def _is_in_sync(view: ZoneView, partition: PartitionId, record: LeaderAndIsr, node: NodeId) -> bool:
    report, leader = view.report(partition, node), view.report(partition, record.leader)
    if node not in record.isr or report is None or report.needs_snapshot:
        return False
    return node == record.leader or leader is None or node in leader.follower_offsets


def counted_nodes(view: ZoneView) -> frozenset[NodeId]:
    """Return the nodes that may have to lead a partition: in sync, or eligible."""
    return frozenset(n for r in view.routes.values() for n in (*r.isr, *r.eligible))


def sole_holders(view: ZoneView) -> frozenset[NodeId]:
    """Return the nodes that have the only in-sync replica of a partition."""
    return frozenset(r.isr[0] for r in view.routes.values() if len(r.isr) == 1)


def decide(
    before: RolloutStatus | None, seen: Situation, now: datetime, zone: str = ""
) -> RolloutDecision:
    """Return what becomes of the update of `zone`, one step on."""
    if seen.refused:
        # Which pods are outdated is not known either.
        held = before and before.model_copy(update={"waiting_for": _REFUSED})
        return RolloutDecision(status=held, held=True) if held else NOTHING
    outdated = [p for p in seen.pods if p.outdated]
    if not outdated and before is None:
        return NOTHING
    status = before or RolloutStatus(started_time=now.replace(microsecond=0))
    status = status.model_copy(
        update={
            "template_hash": seen.template_hash,
            "updated": len(seen.nodes) - len(outdated),
            "outdated": len(outdated),
            "blocked_time": None,
        },
    )
    if status.node is not None and status.node in seen.nodes:
        step = _replacing(status, status.node, seen, now)
        if step is not None:
            return step
    status = status.model_copy(update={"node": None, "pod_uid": "", "replace_time": None})
    if not outdated:
        return _end(status, seen, zone)
    return _next(status, outdated, seen, now, blocked_since=before.blocked_time if before else None)


def _end(status: RolloutStatus, seen: Situation, zone: str) -> RolloutDecision:
    # With a letter, so that it is never the name of the task of a revision.
    task = f"{zone}-u{status.started_time:%y%m%d%H%M%S}"
    if task in seen.tasks:
        return NOTHING
    if seen.paused:
        return RolloutDecision(
            status=status.model_copy(update={"waiting_for": _held(seen)}), held=True
        )
    text = f"RebalanceTask {task} evens out leaders"
    return RolloutDecision(
        status=status.model_copy(update={"waiting_for": text}),
        even_out=task,
    )


def _replacing(
    status: RolloutStatus, node: NodeId, seen: Situation, now: datetime
) -> RolloutDecision | None:
    """Return what the pod that is being replaced needs, None when it has been."""
    pod = next((p for p in seen.pods if p.node == node), None)
    if pod is not None and pod.uid != status.pod_uid:
        if pod.outdated and not _held(seen):
            # The template has changed again, perhaps because this pod does not start.
            return _replace(status, pod, now)
        if not pod.outdated and pod.serving and node not in seen.lagging:
            return None
    reason = _unfinished(node, pod, status)
    old = pod is not None and pod.uid == status.pod_uid and not pod.deleting
    step = _awaiting(status, reason, status.replace_time or now, seen, now)
    return dataclasses.replace(step, delete=pod if old else None)


def _awaiting(
    status: RolloutStatus, reason: str, since: datetime, seen: Situation, now: datetime
) -> RolloutDecision:
    """Return the wait for a data node, which is stuck when it has lasted for too long."""
    left = since + timedelta(seconds=seen.strategy.progress_deadline_seconds) - now
    late = left <= timedelta(0)
    return RolloutDecision(
        status=status.model_copy(update={"waiting_for": reason}),
        stuck=f"{reason}; the update goes on when it does, or when the template changes again"
        if late
        else "",
        wake_seconds=float("inf") if late else left.total_seconds(),
    )


def _unfinished(node: NodeId, pod: SeenPod | None, status: RolloutStatus) -> str:
    if pod is None:
        return f"data node {node}'s pod is being made"
    if pod.uid == status.pod_uid:
        return f"data node {node} hands over and stops"
    if not pod.serving:
        why = f": {pod.waiting}" if pod.waiting else ""
        return f"data node {node}'s new pod does not answer yet{why}"
    return f"data node {node} catches up"


def _next(
    status: RolloutStatus,
    outdated: Sequence[SeenPod],
    seen: Situation,
    now: datetime,
    *,
    blocked_since: datetime | None,
) -> RolloutDecision:
    held = _held(seen)
    if held:
        return RolloutDecision(status=status.model_copy(update={"waiting_for": held}), held=True)
    if seen.maintenance:
        # One node less is enough: with another one replaced a partition might be two short.
        why = f"data node {min(seen.maintenance)} is in maintenance"
        return RolloutDecision(status=status.model_copy(update={"waiting_for": why}))
    # What does not serve is replaced first and waits for nothing: nobody misses it, and it may be
    # what the zone waits for. But its disk may be missed, for as long as anybody counts on it: it
    # may only be the operator that cannot reach it.
    broken = [
        p
        for p in outdated
        if not p.serving and not p.deleting and not (seen.ephemeral and p.node in seen.counted)
    ]
    if broken:
        return _replace(status, min(broken, key=_order), now)
    reason = _obstacle(outdated, seen)
    if not reason:
        return _replace(status, min(outdated, key=_order), now)
    if seen.rebalancing:
        # Its task says what it waits for, for as long as it takes.
        return RolloutDecision(status=status.model_copy(update={"waiting_for": reason}))
    since = blocked_since or now.replace(microsecond=0)
    blocked = status.model_copy(update={"blocked_time": since})
    return _awaiting(blocked, reason, since, seen, now)


def _order(pod: SeenPod) -> tuple[str, NodeId]:
    return (pod.failure_domain, pod.node)


def _held(seen: Situation) -> str:
    strategy = seen.strategy
    if seen.paused:
        return "Paused: spec.paused"
    if strategy.type is UpdateMode.ON_DELETE:
        return "OnDelete: a pod is replaced when somebody deletes it"
    if strategy.paused:
        return "Paused: spec.dataNodes.updateStrategy.paused"
    return ""


def _obstacle(outdated: Sequence[SeenPod], seen: Situation) -> str:
    """Return why no pod that serves may be replaced now, "" when one may."""
    if seen.rebalancing:
        return "a rebalance is under way"
    stopping = [p.node for p in seen.pods if p.deleting or not p.serving]
    missing = sorted({*(seen.nodes - {p.node for p in seen.pods}), *stopping})
    if missing:
        return f"data node {missing[0]} does not serve"
    if seen.lagging:
        return f"data node {min(seen.lagging)} is not in sync"
    chosen = min(outdated, key=_order)
    if seen.ephemeral and chosen.node in seen.sole:
        return (
            f"data node {chosen.node} holds the only copy of a partition on its pod's own disk: "
            "raise spec.replicas"
        )
    return ""


def _replace(status: RolloutStatus, pod: SeenPod, now: datetime) -> RolloutDecision:
    return RolloutDecision(
        status=status.model_copy(
            update={
                "node": pod.node,
                "pod_uid": pod.uid,
                "replace_time": now.replace(microsecond=0),
                "waiting_for": f"data node {pod.node} hands over and stops",
            },
        ),
        delete=pod,
    )
