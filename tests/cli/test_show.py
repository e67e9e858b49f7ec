"""What people see of a zone's streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from rezone.cli.look.text import map_lines, progress_lines, task_line
from rezone.cli.look.views import PartitionMap, connections, partition_map, progress, task_row
from rezone.cli.show import stream_lines
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.resources.conditions import ConditionType, Reason, condition_of
from rezone.resources.copy_progress import CopiesProgress, RepairProgress
from rezone.resources.migration import (
    MigrationState,
    RegionMigration,
    RegionMigrationSpec,
    RegionMigrationStatus,
)
from rezone.resources.model import ObjectMeta
from rezone.resources.task import (
    RebalanceTask,
    RebalanceTaskSpec,
    RebalanceTaskStatus,
    TaskProgress,
    TaskType,
)
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus
from rezone.wire.layouts import id_of
from rezone.wire.messages import ConnectionStatistics, NodeStatistics, StreamStatistics

ZONE = DistributionZone.parse(
    {"metadata": {"name": "z"}, "spec": {"partitions": 2, "replicas": 2, "dataNodes": {"count": 2}}}
)


@pytest.mark.proves("DCP-14")
def test_a_connection_is_shown_under_its_name_with_all_its_streams() -> None:
    """Who looks for the stream that holds up a move would not find it, or not what it waits for."""
    sent = StreamStatistics(
        partition=id_of(2, 3), active=True, frames=2, bytes=1_500_000, sent_offset=9, missing_rows=4
    )
    received = StreamStatistics(partition=5, active=False, frames=1, bytes=0)
    found = NodeStatistics(
        node=0,
        connections=(
            ConnectionStatistics(name="z:0->2", peer=2, producing=False, streams=(received,)),
            ConnectionStatistics(name="z:1->0", peer=1, producing=True, streams=(sent,)),
        ),
    )
    name = "partition 3 of generation 2"
    assert stream_lines(connections(found)) == [
        "node 0: z:0->2, from node 2, 1 streams",
        "  partition 5 (not running): received 0.0 MB in 1 frames",
        "node 0: z:1->0, to node 1, 1 streams",
        f"  {name}: sent 1.5 MB in 2 frames, up to offset 9, 4 rows not acknowledged",
    ]


def map_of(table: RouteRecords) -> PartitionMap:
    """Return the map of a zone with a route table."""
    return partition_map(ZONE, table)


def test_both_layouts_of_a_zone_are_drawn_while_it_is_re_sharded() -> None:
    """Who re-shards would see neither where the new partitions are, nor how many serve."""
    old = [msgspec.structs.replace(routes.initial((0, 1), 1), sealed=p == 0) for p in range(2)]
    (before,) = map_lines(map_of(RouteRecords(old)))
    assert "node 0  LL" in before
    table = RouteRecords(old).with_next([routes.initial((2, 1), 1)] * 3, 1)
    parts = map_lines(map_of(table))
    assert parts[:3] == [
        "1 of 2 partitions have cut over to 3 new ones\n",
        before,
        "new layout\n",
    ]
    assert "node 2  LLL" in parts[3]


@pytest.mark.proves("B-10")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TaskType.ZONE, "moves 3/4, leaders 1/2"),
        (TaskType.RESHARD, "ranges 3/4, cut over 1/2"),
    ],
)
def test_a_task_has_a_line_of_what_it_moves(kind: TaskType, words: str) -> None:
    """Who re-shards would read of leaders that move, and not how much has cut over."""
    progress = TaskProgress(
        moves_total=4,
        moves_done=3,
        leader_moves_total=2,
        leader_moves_done=1,
        bytes_total=8_000_000,
        bytes_done=6_000_000,
        rows_total=8000,
        rows_done=6000,
        skew_percent=125,
        bytes_per_second=2_000_000,
        seconds_left=1,
    )
    task = RebalanceTask(
        metadata=ObjectMeta(name="z-7"),
        spec=RebalanceTaskSpec(zone_name="z", type=kind, revision=7),
        status=RebalanceTaskStatus(
            state="Switching", progress=progress, waiting_for="CuttingOver: 1"
        ),
    )
    assert task_line(task_row(task)) == (
        f"z-7: Switching, {words}, 6,000 of 8,000 rows, 6 of 8 MB, 2 MB/s, skew 1.25, "
        "1 s left, (CuttingOver: 1)"
    )


@pytest.mark.proves("SP-10", "OB-04")
def test_repairs_and_copies_of_leader_transfers_have_a_line_each() -> None:
    """Who waits for a lost data node to be refilled would see rebalances alone."""
    copied: dict[str, Any] = {
        "bytes_total": 8_000_000,
        "bytes_done": 6_000_000,
        "rows_total": 8000,
        "rows_done": 6000,
        "bytes_per_second": 2_000_000,
        "seconds_left": 1,
    }
    repairs = RepairProgress(
        copies_total=9, copies_done=4, data_nodes=(2, 5), skew_percent=125, **copied
    )
    zone = ZONE.model_copy(update={"status": DistributionZoneStatus(repair_progress=repairs)})
    going = RegionMigration(
        metadata=ObjectMeta(name="m"),
        spec=RegionMigrationSpec(zone_name="z", partition=3),
        status=RegionMigrationStatus(
            state=MigrationState.OPEN_CANDIDATE,
            copy_progress=CopiesProgress(**copied),
            waiting_for="node 1 copies a snapshot",
        ),
    )
    ended = RegionMigrationStatus(state=MigrationState.SUCCEEDED, copy_progress=CopiesProgress())
    others = [going.model_copy(update={"status": status}) for status in (None, ended)]
    told = "6,000 of 8,000 rows, 6 of 8 MB, 2 MB/s"
    assert progress_lines(progress(zone, (), [going, *others])) == [
        f"m: OpenCandidate, partition 3, {told}, 1 s left, (node 1 copies a snapshot)",
        f"repairs of data nodes 2, 5: copies 4/9, {told}, skew 1.25, 1 s left",
    ]


def test_indexes_that_are_built_have_a_line_each() -> None:
    """Who waits for an index would see rebalances alone."""
    told = condition_of(
        ConditionType.INDEXING,
        True,  # noqa: FBT003 - the condition's value
        Reason.INDEXING,
        "by_age: 1 of 3 replicas have it, 70 % is done; by_name: 0 of 3 replicas have it, 0 % is",
        generation=1,
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )
    status = DistributionZoneStatus(conditions=(told,))
    zone = ZONE.model_copy(update={"status": status})
    assert progress_lines(progress(zone, ())) == [
        "index by_age: 1 of 3 replicas have it, 70 % is done",
        "index by_name: 0 of 3 replicas have it, 0 % is",
    ]
    assert progress_lines(progress(ZONE, ())) == ["zone z has no RebalanceTask"]
