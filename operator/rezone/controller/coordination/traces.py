"""One trace of each task and each leader transfer, made of its status when it has ended.

All times are in the stored history, so nothing has to be carried from pass to pass: an operator
that takes over in the middle makes the same trace, and the ids follow from the object's UID. A
leader transfer that a task has made is a part of the task's trace.

What is sent is told to a sink, which keeps it off the loop (`otlp`). Without one nothing is made.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from rezone.controller.work.keys import ObjectKey
from rezone.resources.migration import (
    TERMINAL_MIGRATION_STATES,
    RegionMigration,
    RegionMigrationStatus,
)
from rezone.resources.task import TERMINAL_TASK_STATES, RebalanceTask, RebalanceTaskStatus
from rezone.tracing.spans import Span, SpanSink

_TASK: Final = "RebalanceTask"
_SUCCEEDED: Final = "Succeeded"
_ENDS: Final = frozenset({*TERMINAL_TASK_STATES, *TERMINAL_MIGRATION_STATES})


class Traces:
    """Tells the sink of what has ended in this process's time."""

    def __init__(self, sink: SpanSink | None = None) -> None:
        self._sink = sink
        self._running: set[ObjectKey] = set()

    def note_task(self, key: ObjectKey, task: RebalanceTask, status: RebalanceTaskStatus) -> None:
        """Note the status of a task as it is stored."""
        if self._has_ended(key, status.state):
            self._send(spans_of_task(task, status))

    def note_transfer(
        self, key: ObjectKey, migration: RegionMigration, status: RegionMigrationStatus
    ) -> None:
        """Note the status of a leader transfer as it is stored."""
        if self._has_ended(key, status.state):
            self._send(spans_of_transfer(migration, status))

    def forget(self, key: ObjectKey) -> None:
        """Forget an object that is gone."""
        self._running.discard(key)

    def words(self, uid: str) -> dict[str, str]:
        """Return what log lines about an object say of its trace."""
        return {"trace_id": f"{trace_id(uid):032x}"} if self._sink is not None else {}

    async def close(self) -> None:
        """Send what is left; may block for some seconds."""
        if self._sink is not None:
            await asyncio.to_thread(self._sink.close)

    def _has_ended(self, key: ObjectKey, state: str) -> bool:
        if self._sink is None:
            return False
        if state not in _ENDS:
            self._running.add(key)
            return False
        # One that had ended before was told of by whoever ended it.
        ended = key in self._running
        self._running.discard(key)
        return ended

    def _send(self, spans: Iterable[Span]) -> None:
        if self._sink is not None:
            self._sink.send(spans)


def trace_id(uid: str) -> int:
    """Return the id of the trace that begins with an object."""
    return int.from_bytes(_digest("trace", uid)[:16], "big") or 1


def span_id(*parts: str) -> int:
    """Return the id of a span; the same parts give the same id in each process."""
    return int.from_bytes(_digest("span", *parts)[:8], "big") or 1


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()


def spans_of_task(task: RebalanceTask, status: RebalanceTaskStatus) -> list[Span]:
    """Return a task that has ended, its states, and the Spark job that copied for it."""
    begun, ended, uid = status.started_time, status.finished_time, task.metadata.uid
    if begun is None or ended is None:
        return []
    cost = status.write_unavailability
    root = Span(
        name=f"rebalance {task.spec.type}",
        trace_id=trace_id(uid),
        span_id=span_id(uid),
        parent_id=None,
        start=begun,
        end=ended,
        error=_error(status),
        attributes={
            "rezone.namespace": task.metadata.namespace,
            "rezone.task": task.metadata.name,
            "rezone.zone": task.spec.zone_name,
            "rezone.state": status.state,
            "rezone.moves": status.progress.moves_done,
            "rezone.leader_moves": status.progress.leader_moves_done,
            "rezone.bytes": status.progress.bytes_done,
            **{f"rezone.waited_seconds.{each.reason}": each.seconds for each in status.waits},
            **({"rezone.write_gap_ms.max": cost.max_milliseconds} if cost is not None else {}),
        },
    )
    return [root, *_states(root, status, uid), *_job(root, status, uid)]


def spans_of_transfer(migration: RegionMigration, status: RegionMigrationStatus) -> list[Span]:
    """Return a leader transfer that has ended, and its states."""
    begun, ended, uid = status.started_time, status.finished_time, migration.metadata.uid
    if begun is None or ended is None:
        return []
    owner = next((ref for ref in migration.metadata.owner_references if ref.kind == _TASK), None)
    context, gap = status.context, status.write_unavailable_milliseconds
    nodes = {"from_node": context.from_node, "to_node": context.to_node} if context else {}
    root = Span(
        name="leader transfer",
        trace_id=trace_id(owner.uid if owner is not None else uid),
        span_id=span_id(uid),
        parent_id=span_id(owner.uid) if owner is not None else None,
        start=begun,
        end=ended,
        error=_error(status),
        attributes={
            "rezone.namespace": migration.metadata.namespace,
            "rezone.leader_transfer": migration.metadata.name,
            "rezone.zone": migration.spec.zone_name,
            "rezone.partition": migration.spec.partition,
            "rezone.state": status.state,
            **{f"rezone.{name}": node for name, node in nodes.items()},
            **({"rezone.write_gap_ms": gap} if gap is not None else {}),
        },
    )
    return [root, *_states(root, status, uid)]


def _error(status: RebalanceTaskStatus | RegionMigrationStatus) -> str:
    if status.state == _SUCCEEDED:
        return ""
    error = status.last_error
    return f"{error.reason}: {error.message}" if error is not None else status.state


def _states(
    root: Span, status: RebalanceTaskStatus | RegionMigrationStatus, uid: str
) -> Iterator[Span]:
    """Yield the states of the history, the newest 32; the last one is the end itself."""
    lines = status.history
    for number, (line, after) in enumerate(itertools.pairwise(lines)):
        yield Span(
            name=line.state,
            trace_id=root.trace_id,
            span_id=span_id(uid, line.state, str(number)),
            parent_id=root.span_id,
            start=line.time,
            end=after.time,
            attributes={"rezone.message": line.message} if line.message else {},
        )


def _job(root: Span, status: RebalanceTaskStatus, uid: str) -> Iterator[Span]:
    """Yield the time in which Spark copied, from the first bytes on."""
    begun = status.progress.copy_started_time
    if not status.spark_application or begun is None:
        return
    behind = [line.time for line in status.history if line.state == "Switching"]
    yield Span(
        name="spark copy",
        trace_id=root.trace_id,
        span_id=span_id(uid, "spark", status.spark_application),
        parent_id=root.span_id,
        start=begun,
        end=max(begun, behind[0] if behind else root.end),
        attributes={"rezone.spark_application": status.spark_application},
    )
