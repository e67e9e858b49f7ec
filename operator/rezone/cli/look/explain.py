"""Why a task, a leader transfer or a zone waits, and what ends the wait: from its status.

The operator gives tasks and leader transfers a `waitingReason` of a closed set, and conditions a
reason: `WORDS` has for each of them what has to happen and what a person can do. What an older
operator has written has the reason as the first word of `waitingFor`; a word of a newer one that is
not here is told as it is.
"""

import re
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final, NamedTuple

from rezone.cli.look.views import age_seconds
from rezone.report.document import Document, condition
from rezone.resources.conditions import Condition, ConditionedStatus, ConditionStatus, ConditionType
from rezone.resources.machine_status import MachineStatus
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, RegionMigration
from rezone.resources.model import Model, ObjectMeta
from rezone.resources.task import TERMINAL_TASK_STATES, RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DataNodeState, DistributionZoneStatus

FACTS_MAX: Final = 20
_WAITING_ON_NAMES = re.compile(r"^([A-Z][A-Za-z]+)(?::| |$)")


class Advice(NamedTuple):
    """What has to happen before the wait ends, and what a person can do; may be nothing."""

    needs: str
    can_do: str = ""


_BY_ITSELF = "Nothing: it goes on by itself."
WORDS: Final[dict[str, Advice]] = {
    "AwaitingApproval": Advice(
        "A person approves the plan.",
        "Read status.plan, then set spec.approvedPlan to status.plan.hash; or set spec.cancel.",
    ),
    "PlanStale": Advice(
        "A person approves the plan as it is now: another one was approved.",
        "Read status.plan, then set spec.approvedPlan to its hash; or set spec.cancel.",
    ),
    "Paused": Advice(
        "The pause ends.",
        "Set what the message names to false: spec.suspend of the task, or spec.paused or "
        "spec.rebalance.paused of the zone.",
    ),
    "Conflict": Advice(
        "The other rebalance or leader transfer ends.",
        "Look at it with `rezone progress`; cancel it when it should not go first.",
    ),
    "Unreachable": Advice(
        "The data nodes that are named answer again, or are declared lost.",
        "Look at their pods and Kubernetes nodes; a node that never comes back is to be deleted.",
    ),
    "NoLeader": Advice(
        "The partition gets a leader: a replica that has all its rows answers.",
        "Bring a data node of its in-sync set back (docs/operate/failures/failover.md).",
    ),
    "QuorumLost": Advice(
        "A replica that has all acknowledged rows comes back, or a person gives rows up.",
        "Follow docs/operate/failures/lost-quorum.md.",
    ),
    "Opening": Advice("The data nodes open the new replicas.", _BY_ITSELF),
    "Copying": Advice(
        "The copies arrive.",
        "Nothing, while bytesDone rises. spec.rebalance.maxBytesPerSecond of the zone limits them.",
    ),
    "CatchingUp": Advice(
        "New replicas catch up with the leader's log and become in sync.",
        "Nothing, while it advances; writers are slowed when they outrun it.",
    ),
    "PullingLog": Advice(
        "Copies bring the older log that named feeds (spec.feeds) need; then the replaced replicas "
        "go.",
        _BY_ITSELF,
    ),
    "Verifying": Advice("Copies are compared with their leaders' rows.", _BY_ITSELF),
    "Stuck": Advice(
        "The leader transfers that failed too often are looked at.",
        "Read the failed RegionMigrations' conditions; mend the cause, or set spec.cancel.",
    ),
    "NameConflict": Advice(
        "The object that has the name goes away.",
        "Rename or delete the object that the message names.",
    ),
    "AwaitingDeletion": Advice("An earlier object of the name is deleted.", _BY_ITSELF),
    "Maintenance": Advice(
        "The maintenance of the data node ends.",
        "`rezone maintenance` shows until when; `rezone maintenance NODE --end` ends it.",
    ),
    "Limit": Advice(
        "Other moves end: as many run as the zone's limits allow.",
        "Nothing, or raise spec.rebalance's limits in the zone.",
    ),
    "Switching": Advice("Leaders hand over.", _BY_ITSELF),
    "Stopping": Advice("Replicas and copies that are not needed any more stop.", _BY_ITSELF),
    "Writing": Advice("The operator writes its decision to the API server.", _BY_ITSELF),
    "CuttingOver": Advice("Old partitions are sealed and new ones serve.", _BY_ITSELF),
    "Broken": Advice(
        "The damaged or differing part is mended.",
        "Read the operator's log for the partition, or set spec.cancel (docs/operate/moves/"
        "re-sharding.md).",
    ),
    "SparkUnavailable": Advice(
        "A SparkApplication comes to run and copies.",
        "Look at the SparkApplication, its driver pod, and the Spark operator.",
    ),
    "NotEnoughDataNodes": Advice(
        "The zone has at least as many data nodes as replicas.",
        "Raise spec.dataNodes.count, or let more Kubernetes nodes match its selector.",
    ),
    "PodsNotReady": Advice(
        "The data nodes' pods become ready.",
        "`kubectl describe pod` of those that are not: image, volume, and room on the nodes.",
    ),
    "DiskFull": Advice("The data node has room again.", "Grow its volume, or add data nodes."),
    "FailedCreate": Advice(
        "The API server accepts the object.",
        "The message is the API server's answer: mend the quota, policy or right that it names.",
    ),
    "InvalidTemplate": Advice(
        "The zone's podTemplate can be used.",
        "Change the field that the message names, or have it allowed (docs/operate/security.md).",
    ),
    "NamespaceRefused": Advice(
        "The zone is made in another namespace.",
        "Delete it here; or list its name in the chart's zonesInReleaseNamespace.",
    ),
    "FailedDelete": Advice("The API server deletes the object.", _BY_ITSELF),
    "InvalidSpec": Advice("The spec keeps its rules.", "Change the field that the message names."),
    "RetainedLimit": Advice(
        "Old leaders that are kept are removed.",
        "Wait for their time to pass, or move leaders back with `rezone migrate --failback`.",
    ),
    "UnderReplicated": Advice("Replicas catch up and become in sync.", _BY_ITSELF),
    "Rebalancing": Advice(
        "The rebalance ends.", "`rezone explain-wait TASK` says why the task waits."
    ),
    "Starting": Advice("The operator has looked at the object.", _BY_ITSELF),
}


class Fact(Model):
    """Something observed that bears on the wait."""

    about: str
    says: str


class Explanation(Document):
    """What `rezone explain-wait` shows; `waiting` is false when nothing is waited for."""

    kind: str = "Explanation"
    object_kind: str
    namespace: str
    name: str
    state: str
    waiting: bool
    reason: str = ""
    why: str = ""
    needs: str = ""
    can_do: str = ""
    person_must_act: bool = False
    since_seconds: int | None = None
    deadline_seconds: int | None = None
    facts: tuple[Fact, ...] = ()


def explain_task(task: RebalanceTask, zone: DistributionZone | None, now: datetime) -> Explanation:
    """Explain a RebalanceTask; `zone` is its zone, None when there is none."""
    told = _Told("RebalanceTask", task.metadata, task.status, TERMINAL_TASK_STATES)
    return _machine(told, _facts(zone), now)


def explain_migration(
    migration: RegionMigration, zone: DistributionZone | None, now: datetime
) -> Explanation:
    """Explain a RegionMigration (a leader transfer)."""
    meta, status = migration.metadata, migration.status
    told = _Told("RegionMigration", meta, status, TERMINAL_MIGRATION_STATES)
    return _machine(told, _facts(zone), now)


def explain_zone(
    zone: DistributionZone, tasks: Iterable[RebalanceTask], now: datetime
) -> Explanation:
    """Explain why a zone is not ready, or what is under way in it."""
    meta, status = zone.metadata, zone.status
    told = _leading(status)
    facts = [*_facts(zone)]
    for task in tasks:
        if task.spec.zone_name == meta.name and task.status is not None:
            why = task.status.waiting_for
            if why and task.status.state not in TERMINAL_TASK_STATES:
                facts.append(Fact(about=f"RebalanceTask {task.metadata.name}", says=why))
    if told is None:
        ready = condition(status, ConditionType.READY)
        waiting = ready is None
        reason = "Starting" if waiting else ""
        why = ready.message if ready is not None else "the operator has not seen the zone"
    else:
        waiting, reason, why = True, told.reason, told.message
    advice = advice_for(reason, why) if waiting else Advice("")
    return Explanation(
        object_kind="DistributionZone",
        namespace=meta.namespace,
        name=meta.name,
        state="NotReady" if waiting else "Ready",
        waiting=waiting,
        reason=reason,
        why=why,
        needs=advice.needs,
        can_do=advice.can_do,
        person_must_act=condition(status, ConditionType.STALLED) is not None,
        since_seconds=age_seconds(told.last_transition_time if told else None, now),
        facts=tuple(facts[:FACTS_MAX]),
    )


def advice_for(reason: str, why: str) -> Advice:
    """Return what ends a wait: by the first word of `why`, then by the reason.

    A pause comes first in `why` and says what else is waited for behind it.
    """
    found = _WAITING_ON_NAMES.match(why)
    for word in (found.group(1) if found is not None else "", reason):
        if word in WORDS:
            return WORDS[word]
    return Advice(
        "What the message says comes to pass.",
        "docs/operate/troubleshooting.md explains each reason; the operator's log may say more.",
    )


def _advice_of(status: MachineStatus, reason: str) -> Advice:
    """Return what ends the wait of a task or transfer: by the reason that its status names.

    A pause says what else is waited for behind it, which a person has no use for before it ends.
    """
    if status.waiting_reason is not None and status.waiting_reason in WORDS:
        return WORDS[status.waiting_reason]
    return advice_for(reason, status.waiting_for)


class _Told(NamedTuple):
    """An object with a state machine."""

    kind: str
    meta: ObjectMeta
    status: MachineStatus | None
    ends: Collection[str]


def _machine(stored: _Told, facts: tuple[Fact, ...], now: datetime) -> Explanation:
    kind, meta, status, ends = stored
    if status is None or not status.state:
        why, advice = "the operator has not seen it", WORDS["Starting"]
        return Explanation(
            object_kind=kind,
            namespace=meta.namespace,
            name=meta.name,
            state="new",
            waiting=True,
            reason="Starting",
            why=why,
            needs=advice.needs,
            can_do="Look whether the operator runs, and whether spec.zoneName names a zone.",
            since_seconds=age_seconds(meta.creation_timestamp, now),
            facts=facts,
        )
    told = condition(status, ConditionType.SUCCEEDED)
    over = status.state in ends
    why = "" if over else status.waiting_for
    reason = told.reason if told is not None else ""
    advice = _advice_of(status, reason) if why else Advice("")
    entered = status.history[-1].time if status.history else status.started_time
    error = status.last_error
    if error is not None:
        said = Fact(about="last error", says=f"{error.reason}: {error.message}")
        facts = (said, *facts)
    return Explanation(
        object_kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        state=status.state,
        waiting=bool(why),
        reason=(status.waiting_reason or reason) if why else reason,
        why=why or (told.message if told is not None else ""),
        needs=advice.needs,
        can_do=advice.can_do,
        person_must_act=condition(status, ConditionType.STALLED) is not None,
        since_seconds=age_seconds(entered, now),
        deadline_seconds=None if over else _seconds_until(status.deadline_time, now),
        facts=facts[:FACTS_MAX],
    )


def _seconds_until(deadline: datetime | None, now: datetime) -> int | None:
    return None if deadline is None else int((deadline - now).total_seconds())


def _leading(status: ConditionedStatus | None) -> Condition | None:
    """Return the condition that says why a zone is not at rest: the gravest one."""
    stalled = condition(status, ConditionType.STALLED)
    ready = condition(status, ConditionType.READY)
    degraded = condition(status, ConditionType.DEGRADED)
    if stalled is not None:
        return stalled
    if ready is not None and ready.status is not ConditionStatus.TRUE:
        return ready
    if degraded is not None and degraded.status is ConditionStatus.TRUE:
        return degraded
    return condition(status, ConditionType.RECONCILING)


def _facts(zone: DistributionZone | None) -> tuple[Fact, ...]:
    """Return what a zone's status says that holds moves up: data nodes away, pauses, conditions."""
    if zone is None:
        return (Fact(about="zone", says="there is no zone of the name in spec.zoneName"),)
    status = zone.status if zone.status is not None else DistributionZoneStatus()
    facts = [
        Fact(about=f"data node {node.id}", says=f"{node.state} on {node.node_name or 'no node'}")
        for node in status.data_nodes
        if node.state is not DataNodeState.ACTIVE
    ]
    if zone.spec.paused:
        facts.append(Fact(about="zone", says="spec.paused is true"))
    kinds = (ConditionType.DEGRADED, ConditionType.MAINTENANCE, ConditionType.UPDATING)
    for kind in kinds:
        told = condition(status, kind)
        if told is not None and told.status is ConditionStatus.TRUE:
            facts.append(Fact(about=f"condition {kind}", says=f"{told.reason}: {told.message}"))
    return tuple(facts[:FACTS_MAX])
