"""What became of a task or a leader transfer: what was done, how long it took, who asked.

All of it is what the objects say. Kubernetes keeps with each field which program wrote it last
(`managedFields`), not which user; that is in the API server's audit log alone.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from rezone.domain.machines.waits import waits_until
from rezone.kube.api.kinds import Manifest
from rezone.report.document import condition
from rezone.report.task import (
    Asked,
    StateSpan,
    TaskFigures,
    TaskReport,
    TransferRow,
    WaitSpan,
    WriteOutage,
)
from rezone.report.transfer import TransferReport
from rezone.resources.conditions import ConditionType
from rezone.resources.machine_status import MachineStatus
from rezone.resources.migration import (
    TERMINAL_MIGRATION_STATES,
    RegionMigration,
    RegionMigrationStatus,
)
from rezone.resources.task import (
    TERMINAL_TASK_STATES,
    RebalanceTask,
    RebalanceTaskStatus,
    TaskState,
    WriteUnavailability,
)

ASKED_FIELDS: Final = ("approvedPlan", "suspend", "cancel")
ASKED_OF_TRANSFER: Final = ("cancel", "uncleanElection")


def task_report(
    manifest: Manifest,
    task: RebalanceTask,
    migrations: Iterable[RegionMigration],
    now: datetime,
    before: RebalanceTask | None = None,
) -> TaskReport:
    """Return the report of a task, which may be under way; `manifest` is its stored form.

    `before` is the task that it is compared with.
    """
    status = task.status if task.status is not None else RebalanceTaskStatus()
    told = condition(status, ConditionType.SUCCEEDED)
    done, plan = status.progress, status.plan
    end = status.finished_time or now
    return TaskReport(
        namespace=task.metadata.namespace,
        name=task.metadata.name,
        zone=task.spec.zone_name,
        type=task.spec.type,
        state=status.state or "new",
        ended=status.state in TERMINAL_TASK_STATES,
        reason=told.reason if told is not None else "",
        message=told.message if told is not None else "",
        started_time=status.started_time,
        finished_time=status.finished_time,
        seconds=_seconds(status.started_time, end),
        plan_hash=plan.hash if plan is not None else "",
        moves_planned=plan.moves if plan is not None else 0,
        moves_done=done.moves_done,
        leader_moves_planned=plan.leader_moves if plan is not None else 0,
        leader_moves_done=done.leader_moves_done,
        bytes_planned=plan.bytes_estimate if plan is not None else 0,
        bytes_done=done.bytes_done,
        seconds_planned=plan.seconds_estimate if plan is not None else 0,
        bytes_per_second=_rate(status),
        copies_dropped=status.copies_dropped,
        by_spark=status.spark_application,
        states=_spans(status, end),
        waits=_waits(status, end),
        write_unavailability=_outage(status.write_unavailability),
        asked=_asked(manifest, ASKED_FIELDS),
        transfers=tuple(transfer_row(each, now) for each in _own(task, migrations)),
        figures=figures_of(task, now),
        before=figures_of(before, now) if before is not None else None,
    )


def figures_of(task: RebalanceTask, now: datetime) -> TaskFigures:
    """Return what a task is compared by."""
    status = task.status if task.status is not None else RebalanceTaskStatus()
    end = status.finished_time or now
    outage, served = status.write_unavailability, status.progress.clients_served
    stopped = outage is not None and outage.transfers
    return TaskFigures(
        name=task.metadata.name,
        finished_time=status.finished_time,
        seconds=_seconds(status.started_time, end),
        moves_done=status.progress.moves_done,
        leader_moves_done=status.progress.leader_moves_done,
        bytes_done=status.progress.bytes_done,
        bytes_per_second=_rate(status),
        waited_seconds=sum(each.seconds for each in waits_until(status, end)),
        copies_dropped=status.copies_dropped,
        write_unavailable_milliseconds_mean=(
            round(outage.total_milliseconds / outage.transfers) if outage and stopped else None
        ),
        write_unavailable_milliseconds_max=(
            outage.max_milliseconds if outage and stopped else None
        ),
        served_percent_mean=(
            round(served.total_percent / served.samples) if served and served.samples else None
        ),
        served_percent_max=served.max_percent if served and served.samples else None,
    )


def task_before(task: RebalanceTask, tasks: Iterable[RebalanceTask]) -> RebalanceTask | None:
    """Return the last task of the same type that had succeeded when this one began."""
    begun = task.status.started_time if task.status is not None else None
    earlier = [
        (each.status.finished_time, each.metadata.name, each)
        for each in tasks
        if each.status is not None
        and each.status.state == TaskState.SUCCEEDED
        and each.spec.type is task.spec.type
        and each.metadata.name != task.metadata.name
        and each.status.finished_time is not None
        and (begun is None or each.status.finished_time <= begun)
    ]
    return max(earlier, key=lambda each: each[:2])[2] if earlier else None


def transfer_report(
    manifest: Manifest,
    migration: RegionMigration,
    others: Iterable[RegionMigration],
    now: datetime,
) -> TransferReport:
    """Return the report of a leader transfer; `others` are those of its zone."""
    status = migration.status if migration.status is not None else RegionMigrationStatus()
    told, row = condition(status, ConditionType.SUCCEEDED), transfer_row(migration, now)
    copies, done, context = status.copies, status.copy_progress, status.context
    end = status.finished_time or now
    before = _transfer_before(migration, others)
    owners = (ref for ref in migration.metadata.owner_references if ref.kind == "RebalanceTask")
    return TransferReport(
        namespace=migration.metadata.namespace,
        name=row.name,
        zone=migration.spec.zone_name,
        task=next((ref.name for ref in owners), ""),
        partition=row.partition,
        from_node=row.from_node,
        to_node=row.to_node,
        state=row.state or "new",
        ended=row.ended,
        reason=told.reason if told is not None else "",
        message=told.message if told is not None else "",
        error=row.error,
        started_time=status.started_time,
        finished_time=status.finished_time,
        seconds=row.seconds,
        write_unavailable_milliseconds=status.write_unavailable_milliseconds,
        copied=context is not None and context.opened_candidate,
        bytes_done=done.bytes_done if done is not None else None,
        rows_done=done.rows_done if done is not None else None,
        by_spark=copies.application if copies is not None else "",
        old_leader_policy=migration.spec.old_leader_policy,
        retain_old_leader_until_time=status.retain_old_leader_until_time,
        recovery=status.recovery.message if status.recovery is not None else "",
        states=_spans(status, end),
        waits=_waits(status, end),
        asked=_asked(manifest, ASKED_OF_TRANSFER),
        before=transfer_row(before, now) if before is not None else None,
    )


def _transfer_before(
    migration: RegionMigration, others: Iterable[RegionMigration]
) -> RegionMigration | None:
    begun = migration.status.started_time if migration.status is not None else None
    earlier = [
        (each.status.finished_time, each.metadata.name, each)
        for each in others
        if each.status is not None
        and each.spec.partition == migration.spec.partition
        and each.metadata.name != migration.metadata.name
        and each.status.finished_time is not None
        and (begun is None or each.status.finished_time <= begun)
    ]
    return max(earlier, key=lambda each: each[:2])[2] if earlier else None


def _seconds(since: datetime | None, until: datetime) -> int | None:
    return None if since is None else max(0, int((until - since).total_seconds()))


def _rate(status: RebalanceTaskStatus) -> int | None:
    """Return the mean rate from the first bytes to the end of the copies, None without any.

    Copies end where leaders begin to move; a re-sharding copies until it is over.
    """
    begun = status.progress.copy_started_time
    switching = (line.time for line in status.history if line.state == "Switching")
    end = next(switching, status.finished_time)
    if begun is None or end is None or not status.progress.bytes_done:
        return None
    return int(status.progress.bytes_done / max(1.0, (end - begun).total_seconds()))


def _spans(status: MachineStatus, end: datetime) -> tuple[StateSpan, ...]:
    """Return how long each state of the history took; the last one until `end`."""
    lines = status.history
    ends = [*(line.time for line in lines), end][1:]
    return tuple(
        StateSpan(
            state=line.state,
            time=line.time,
            seconds=_seconds(line.time, until) or 0,
            message=line.message,
        )
        for line, until in zip(lines, ends, strict=True)
    )


def _waits(status: MachineStatus, end: datetime) -> tuple[WaitSpan, ...]:
    found = waits_until(status, end)
    return tuple(WaitSpan(reason=each.reason, seconds=each.seconds) for each in found)


def _outage(found: WriteUnavailability | None) -> WriteOutage | None:
    return WriteOutage.model_validate(found.model_dump()) if found is not None else None


def _asked(manifest: Manifest, fields: Sequence[str]) -> tuple[Asked, ...]:
    """Return which program wrote the fields by which people act, and when."""
    spec: dict[str, Any] = manifest.get("spec") or {}
    found = []
    for entry in manifest.get("metadata", {}).get("managedFields") or ():
        owned = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        found += [
            Asked(
                field=name,
                value=_value(spec.get(name, "")),
                manager=str(entry.get("manager", "")),
                time=entry.get("time"),
            )
            for name in fields
            if f"f:{name}" in owned and spec.get(name)
        ]
    return tuple(sorted(found, key=lambda each: (each.field, each.manager)))


def _value(value: Any) -> str:
    """Return a field's value in a few words: of an object, that it is there."""
    return "set" if isinstance(value, dict) else str(value)


def _own(task: RebalanceTask, migrations: Iterable[RegionMigration]) -> Sequence[RegionMigration]:
    uid = task.metadata.uid
    own = (m for m in migrations if any(ref.uid == uid for ref in m.metadata.owner_references))
    return sorted(own, key=lambda migration: migration.spec.partition)


def transfer_row(migration: RegionMigration, now: datetime) -> TransferRow:
    """Return a leader transfer in short."""
    status = migration.status
    context = status.context if status is not None else None
    error = status.last_error if status is not None else None
    end = status.finished_time or now if status is not None else now
    return TransferRow(
        name=migration.metadata.name,
        partition=migration.spec.partition,
        from_node=context.from_node if context is not None else None,
        to_node=context.to_node if context is not None else migration.spec.target,
        state=status.state if status is not None else "new",
        ended=status is not None and status.state in TERMINAL_MIGRATION_STATES,
        started_time=status.started_time if status is not None else None,
        seconds=_seconds(status.started_time, end) if status is not None else None,
        write_unavailable_milliseconds=(
            status.write_unavailable_milliseconds if status is not None else None
        ),
        error=f"{error.reason}: {error.message}" if error is not None else "",
    )
