"""For how long leader transfers and cut-overs have stopped writes, as the leaders report it.

A leader that followed no planned transfer, or whose process has begun since, has no figure.
"""

from collections.abc import Iterable
from datetime import datetime

from rezone.domain.model.resharding_view import ReshardingView
from rezone.domain.model.world import ZoneView
from rezone.resources.task import PARTITION_GAPS_MAX, PartitionGap, WriteUnavailability
from rezone.wire.layouts import index_of
from rezone.wire.messages import PartitionId


def gap_ms(view: ZoneView, partition: PartitionId, leader_epoch: int) -> int | None:
    """Return for how long the transfer to the leader of an epoch has stopped writes."""
    report = view.leader_report(partition)
    known = report is not None and report.leader_epoch == leader_epoch
    return report.write_gap_ms if report is not None and known else None


def unavailability(
    view: ZoneView, partitions: Iterable[PartitionId], since: datetime
) -> WriteUnavailability | None:
    """Return what the transfers since a time have cost, None where nothing is known of any.

    Of each partition the last transfer counts.
    """
    begun = int(since.timestamp() * 1_000_000)
    gaps = []
    for partition in partitions:
        report = view.leader_report(partition)
        if report is None or report.write_gap_ms is None or report.write_gap_time < begun:
            continue
        gaps.append(PartitionGap(partition=index_of(partition), milliseconds=report.write_gap_ms))
    return _added_up(gaps)


def cut_overs(view: ReshardingView) -> WriteUnavailability | None:
    """Return what cut-overs have cost, by old partition; None where nothing is known of any.

    An old partition's is the longest of its ranges: each new partition has had its own.
    """
    gaps = []
    for partition, pairs in view.ranges.items():
        found = [each.write_gap_ms for _, each in pairs if each.write_gap_ms is not None]
        if pairs and len(found) == len(pairs):
            gaps.append(PartitionGap(partition=index_of(partition), milliseconds=max(found)))
    return _added_up(gaps)


def _added_up(gaps: list[PartitionGap]) -> WriteUnavailability | None:
    if not gaps:
        return None
    gaps.sort(key=lambda gap: (-gap.milliseconds, gap.partition))
    return WriteUnavailability(
        transfers=len(gaps),
        total_milliseconds=sum(gap.milliseconds for gap in gaps),
        max_milliseconds=gaps[0].milliseconds,
        longest=tuple(gaps[:PARTITION_GAPS_MAX]),
    )
