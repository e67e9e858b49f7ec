"""How far the copies are that a zone makes by itself, by Spark or by streams (SP-10). Pure.

A replica that needs no copy any more leaves no trace in what is observed, so what is done is told
by what is left: the status has how many there were. Replicas of which nothing is heard are left as
they were: a data node that is silent for a moment has not copied anything. Which data nodes these
are stands in the status, so that others which are silent hide nothing.
"""

import dataclasses
from datetime import datetime

from rezone.domain.model.world import ZoneView
from rezone.domain.rebalance import estimates
from rezone.domain.rebalance.progress import is_worth_writing, with_rate
from rezone.domain.rebalance.repair_copies import candidates
from rezone.domain.rebalance.survey import size_of
from rezone.domain.repair.repairs import places
from rezone.resources.copy_progress import RepairProgress
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId, ReplicaReport

_Amount = tuple[int, int]
"""Bytes and rows."""


@dataclasses.dataclass(frozen=True)
class SeenRepairs:
    """The zone's own copies as a pass has found them; `by_spark`: they need the next one soon."""

    progress: RepairProgress | None
    by_spark: bool = False


def told(written: RepairProgress | None, seen: SeenRepairs | None) -> RepairProgress | None:
    """Return what the status is to tell: what is seen, in steps; as before until a pass looked."""
    if seen is None:
        return written
    if written is None or seen.progress is None or is_worth_writing(written, seen.progress):
        return seen.progress
    return written


@dataclasses.dataclass(frozen=True)
class _Left:
    """What still needs a copy: of each how much it has in all, and how much of it is left.

    `silent` counts replicas on data nodes that are being repaired of which nothing is heard.
    """

    sizes: list[_Amount]
    left: list[_Amount]
    nodes: frozenset[NodeId]
    silent: int


def repair_progress(
    view: ZoneView, old: RepairProgress | None, now: datetime, *, task_copies: bool
) -> RepairProgress | None:
    """Return how far the zone's own copies are; None while there is nothing to repair."""
    if task_copies or (old is None and not view.without_data):
        return None
    before = old or RepairProgress()
    found = _look(view, before)
    counted = _counted(found, before)
    if counted.copies_done >= counted.copies_total:
        return None
    return with_rate(counted, before, now)


def _look(view: ZoneView, before: RepairProgress) -> _Left:
    """Return what is left, in one walk over the routes."""
    found = _Left([], [], frozenset(), 0)
    moving, known = candidates(view), {*before.data_nodes}
    nodes, silent = set[NodeId](), 0
    for partition, record in view.routes.items():
        for node in () if record.sealed else places(view, partition):
            if node in record.isr or (partition, node) in moving:
                continue
            report = view.report(partition, node)
            if report is None:
                if node in known and node in view.nodes and not view.nodes[node].lost:
                    silent += 1
                    nodes.add(node)
            elif report.needs_snapshot:
                size, left = _amounts(view, partition, record, report, before)
                found.sizes.append(size)
                found.left.append(left)
                nodes.add(node)
    return dataclasses.replace(found, nodes=frozenset(nodes), silent=silent)


def _amounts(
    view: ZoneView,
    partition: PartitionId,
    record: LeaderAndIsr,
    report: ReplicaReport,
    before: RepairProgress,
) -> tuple[_Amount, _Amount]:
    """Return how much one copy has, and how much of it is left."""
    rows, size = size_of(view, partition, record)
    if not size:  # nobody answers who has the rows
        size, rows = _mean(before)
    if report.copy is None:
        return (size, rows), (size, rows)
    left = max(0, size - report.copy.bytes), max(0, rows - report.copy.rows)
    return (size, rows), left


def _mean(before: RepairProgress) -> _Amount:
    copies = max(1, before.copies_total)
    return before.bytes_total // copies, before.rows_total // copies


def _counted(found: _Left, before: RepairProgress) -> RepairProgress:
    """Return what is done by what is left; more copies than before are new ones."""
    left_before = before.copies_total - before.copies_done
    left = len(found.left)
    silent = min(found.silent, max(0, left_before - left))
    more = left > left_before
    mean = _mean(before)
    amounts = dict[str, int]()
    for index, what in enumerate(("bytes", "rows")):
        total, done = getattr(before, f"{what}_total"), getattr(before, f"{what}_done")
        rest = sum(each[index] for each in found.left) + silent * mean[index]
        total = max(total, sum(each[index] for each in found.sizes), more * (done + rest))
        amounts |= {f"{what}_total": total, f"{what}_done": max(done, total - rest)}
    known = None
    if more or before.skew_percent is None:
        known = estimates.skew_percent([size for size, _ in found.sizes])
    copies = max(before.copies_total, before.copies_done + left)
    return RepairProgress(
        copies_total=copies,
        copies_done=copies - left - silent,
        data_nodes=tuple(sorted(found.nodes)),
        skew_percent=before.skew_percent if known is None else known,
        **amounts,
    )
