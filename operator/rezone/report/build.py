"""What became of a task: what was planned and done, how long it took and waited, who asked.

All of it is what the objects say. Kubernetes keeps with each field which program wrote it last
(`managedFields`), not which user; that is in the API server's audit log alone.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from rezone.domain.machines.waits import waits_until
from rezone.kube.kinds import Manifest
from rezone.report.document import condition
from rezone.report.task import (
    Asked,
    StateSpan,
    TaskReport,
    TransferRow,
    WaitSpan,
    WriteOutage,
)
from rezone.resources.conditions import ConditionType
from rezone.resources.machine_status import MachineStatus
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, RegionMigration
from rezone.resources.task import (
    TERMINAL_TASK_STATES,
    RebalanceTask,
    RebalanceTaskStatus,
    WriteUnavailability,
)

ASKED_FIELDS: Final = ("approvedPlan", "suspend", "cancel")


def task_report(
    manifest: Manifest, task: RebalanceTask, migrations: Iterable[RegionMigration], now: datetime
) -> TaskReport:
    """Return the report of a task, which may be under way; `manifest` is its stored form."""
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
        waits=tuple(
            WaitSpan(reason=each.reason, seconds=each.seconds) for each in waits_until(status, end)
        ),
        write_unavailability=_outage(status.write_unavailability),
        asked=_asked(manifest),
        transfers=tuple(_transfer(each, now) for each in _own(task, migrations)),
    )


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


def _outage(found: WriteUnavailability | None) -> WriteOutage | None:
    return WriteOutage.model_validate(found.model_dump()) if found is not None else None


def _asked(manifest: Manifest) -> tuple[Asked, ...]:
    """Return which program wrote the fields by which people act, and when."""
    spec: dict[str, Any] = manifest.get("spec") or {}
    found = []
    for entry in manifest.get("metadata", {}).get("managedFields") or ():
        owned = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        found += [
            Asked(
                field=name,
                value=str(spec.get(name, "")),
                manager=str(entry.get("manager", "")),
                time=entry.get("time"),
            )
            for name in ASKED_FIELDS
            if f"f:{name}" in owned and spec.get(name)
        ]
    return tuple(sorted(found, key=lambda each: (each.field, each.manager)))


def _own(task: RebalanceTask, migrations: Iterable[RegionMigration]) -> Sequence[RegionMigration]:
    uid = task.metadata.uid
    own = (m for m in migrations if any(ref.uid == uid for ref in m.metadata.owner_references))
    return sorted(own, key=lambda migration: migration.spec.partition)


def _transfer(migration: RegionMigration, now: datetime) -> TransferRow:
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
