"""What a re-sharding sees of its zone: from route records and the reports of data nodes.

Pure. What a target says counts only from the leader of its record, in that epoch; the seal of a
source from whoever has it, for it is committed then, but that there is none only from its leader.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

from rezone.domain.assignment.assignments import parse
from rezone.domain.model.resharding_view import RangeView, ReshardingView, SourceView, TargetView
from rezone.domain.model.world import NodeView, ZoneView
from rezone.domain.observed.readiness import CLOSE_ROWS, uncompared
from rezone.domain.rebalance.clients_served import busiest
from rezone.domain.repair.repairs import without_data
from rezone.domain.resharding.overwrites import is_abandoned
from rezone.domain.routing.topology_text import Topology
from rezone.resources.task import RebalanceTaskSpec, RebalanceTaskStatus
from rezone.wire.layouts import Layout, Overlap, sources_of
from rezone.wire.messages import (
    LeaderAndIsr,
    NodeId,
    PartitionId,
    ReplicaReport,
    ReshardProgress,
    SealState,
)

RangeKey = tuple[PartitionId, PartitionId, int]
"""A range as it was compared: the source, the target, and the target's leader epoch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """The ranges that equalled their source when they were compared, and those that differed.

    `failing` could not be compared the last time, and why.
    """

    verified: Collection[RangeKey] = ()
    differing: Collection[RangeKey] = ()
    failing: Mapping[RangeKey, str] = dataclasses.field(default_factory=dict)


def observe(
    view: ZoneView,
    spec: RebalanceTaskSpec,
    status: RebalanceTaskStatus,
    compared: Compared,
    *,
    grace_seconds: float,
) -> ReshardingView:
    """Return what the task of a re-sharding sees of its zone."""
    revision = status.revision or spec.revision
    holds = view.resharding and view.pending_revision == revision
    generation = status.layout_version or (view.pending_generation if holds else 0)
    target = parse(status.target) if status.target else (view.pending or ()) if holds else ()
    filled_by = view.pending_filled_by if holds else ""
    olds = [each for each in view.routes.layouts if each.generation < generation]
    old = olds[-1] if olds else None
    stable, pending = view.stable or (), (view.pending or ()) if holds else ()
    return ReshardingView(
        sources=_sources(view, old),
        targets=_targets(view, old, Layout(generation, len(target)), target, compared),
        generation=generation,
        stable=stable,
        pending=pending,
        holds_pending=holds,
        done=bool(status.layout_version) and view.generation >= status.layout_version,
        cancel_written=view.cancel_revision == revision,
        coordinator_epoch=view.coordinator_epoch,
        paused=view.paused,
        hands_off=view.hands_off,
        manual_approval=view.manual_approval,
        max_concurrent_cut_overs=max(1, view.max_concurrent_handovers),
        lag_rows_max=CLOSE_ROWS,
        grace_seconds=grace_seconds,
        others_left=any(
            e.generation not in {generation, view.generation} for e in view.routes.layouts
        ),
        held=_held(view),
        unreported=sum(_is_unreported(node) for node in view.nodes.values()),
        served_percent=busiest(view.nodes.values()),
        spark_name=view.spark.name if view.spark is not None else "",
        spark_state=view.spark.state if view.spark is not None else "",
        spark_error=view.spark.error if view.spark is not None else "",
        spark_taken=view.spark is not None and bool(view.spark.taken),
        spark_threshold_bytes=view.spark_threshold_bytes,
        filled_by=filled_by,
        abandoned=is_abandoned(view.nodes.values()),
    )


def _is_unreported(node: NodeView) -> bool:
    return not (node.reachable or node.lost or node.unreachable_since)


def _held(view: ZoneView) -> frozenset[PartitionId]:
    seen = (node.replicas for node in view.nodes.values() if node.reachable)
    return frozenset(partition for replicas in seen for partition in replicas)


def _sources(view: ZoneView, old: Layout | None) -> dict[PartitionId, SourceView]:
    found = {}
    for partition in old.ids if old is not None else ():
        record = view.routes[partition]
        sealed = _word(view, partition, record)
        found[partition] = SourceView(partition=partition, record=record, sealed=sealed)
    return found


def _word(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> bool | None:
    reports = [view.report(partition, node) for node in record.replicas]
    if any(report is not None and report.seal is SealState.SEALED for report in reports):
        return True
    leader = view.leader_report(partition)
    return False if leader is not None and leader.seal is SealState.NONE else None


@functools.lru_cache(maxsize=16)
def _overlaps(old: Layout, new: Layout) -> Mapping[PartitionId, tuple[Overlap, ...]]:
    """Return each target's ranges; every pass asks for the same ones, and there are thousands."""
    return {partition: tuple(sources_of(partition, old, new)) for partition in new.ids}


def _targets(
    view: ZoneView, old: Layout | None, new: Layout, target: Topology, compared: Compared
) -> dict[PartitionId, TargetView]:
    found = {}
    overlaps = _overlaps(old, new) if old is not None else {}
    for partition, nodes in zip(new.ids, target, strict=True):
        record = view.routes.get(partition)
        there = tuple(n for n in nodes if n in view.nodes and not view.nodes[n].lost)
        ranges = overlaps.get(partition, ())
        report = view.leader_report(partition) if record is not None else None
        seen = _ranges(view, old, ranges, report, compared)
        if record is not None and view.pending_filled_by:
            seen = _filled(seen, _lost_marks(view, partition, record))
        found[partition] = TargetView(
            partition=partition,
            nodes=there,
            ranges=seen,
            record=record,
            in_sync=record is not None and _in_sync(view, partition, record, there),
            leader_epoch=report.leader_epoch if report is not None else None,
            lost=record is not None and _is_lost(view, partition, record),
        )
    return found


def _is_lost(view: ZoneView, partition: PartitionId, record: LeaderAndIsr) -> bool:
    """Return whether nobody can lead for sure, and will not by itself (`repair.repairs`)."""
    members = {*record.isr, *record.eligible}
    gone = without_data(view, partition, among=members)
    return record.leader in gone and members - gone <= uncompared(view, partition, record)


def _in_sync(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr, nodes: Sequence[NodeId]
) -> bool:
    """Return whether all nodes have every row, and their indexes too (DCP-08)."""
    if not nodes or not {*nodes} <= {*record.isr}:
        return False
    return all(_is_indexed(view, view.report(partition, node)) for node in nodes)


def _is_indexed(view: ZoneView, report: ReplicaReport | None) -> bool:
    if not view.indexes:
        return True
    if report is None or report.index is None:
        return False
    behind = report.committed_offset - report.index.offset
    return behind < CLOSE_ROWS and {*view.indexes} <= {*report.index.built}


def _ranges(
    view: ZoneView,
    old: Layout | None,
    overlaps: Sequence[Overlap],
    report: ReplicaReport | None,
    compared: Compared,
) -> tuple[RangeView, ...]:
    said = {each.source: each for each in report.reshard_progress} if report is not None else {}
    epoch = report.leader_epoch if report is not None else 0
    found = []
    for overlap in overlaps:
        progress = said.get(overlap.old, ReshardProgress(source=overlap.old))
        key = (overlap.old, overlap.new, epoch)
        (done, total), (rows_done, rows_total) = _sizes(view, old, overlap, progress)
        found.append(
            RangeView(
                overlap=overlap,
                backfilled=progress.backfilled,
                lag_rows=progress.lag_rows,
                broken=progress.broken,
                verified=key in compared.verified,
                differs=key in compared.differing,
                not_compared=compared.failing.get(key, ""),
                sealed=progress.sealed,
                sealed_time=progress.sealed_time,
                write_gap_ms=progress.write_gap_ms,
                bytes_done=done,
                bytes_total=total,
                rows_done=rows_done,
                rows_total=rows_total,
            )
        )
    return tuple(found)


def _filled(ranges: Sequence[RangeView], lost: Collection[PartitionId]) -> tuple[RangeView, ...]:
    """Return ranges whose rows a job brings: there is nothing to compare them with.

    One that lacks rows which no log has, at one of its replicas, has to begin again.
    """
    return tuple(
        dataclasses.replace(
            each, verified=each.backfilled, broken=each.broken or each.overlap.old in lost
        )
        for each in ranges
    )


def _lost_marks(
    view: ZoneView, partition: PartitionId, record: LeaderAndIsr
) -> frozenset[PartitionId]:
    """Return the sources of which a replica takes no rows any more, as it says in this epoch."""
    reports = (view.report(partition, node) for node in record.replicas)
    return frozenset(
        source
        for report in reports
        if report is not None and report.leader_epoch == record.leader_epoch
        for source in report.lost_marks
    )


def _sizes(
    view: ZoneView, old: Layout | None, overlap: Overlap, progress: ReshardProgress
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return how many bytes of a range are backfilled, how many it has, and its rows, about.

    As if they were spread evenly over the source's range, as hashes are.
    """
    record = view.routes.get(overlap.old)
    report = view.report(overlap.old, record.leader) if record is not None else None
    if report is None or old is None:
        return (0, 0), (0, 0)
    start, end = old.range_of(overlap.old)
    share = (overlap.end - overlap.start) / (end - start)
    total, rows = int(report.bytes_estimate * share), report.rows_estimate * share
    done = min(1.0, progress.rows / rows) if rows else 0.0
    if progress.backfilled or progress.sealed:
        done = 1.0
    return (int(total * done), total), (int(rows * done), int(rows))
