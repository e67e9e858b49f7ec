"""What people see of a zone's streams."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rezone.cli.show import index_lines, stream_lines
from rezone.resources.conditions import ConditionType, Reason, condition_of
from rezone.resources.zone_status import DistributionZoneStatus
from rezone.wire.messages import ConnectionStatistics, NodeStatistics, StreamStatistics


@pytest.mark.proves("DCP-14")
def test_a_connection_is_shown_under_its_name_with_all_its_streams() -> None:
    """Who looks for the stream that holds up a move would not find it, or not what it waits for."""
    sent = StreamStatistics(
        partition=3, active=True, frames=2, bytes=1_500_000, sent_offset=9, missing_rows=4
    )
    received = StreamStatistics(partition=5, active=False, frames=1, bytes=0)
    found = NodeStatistics(
        node=0,
        connections=(
            ConnectionStatistics(name="z:0->2", peer=2, producing=False, streams=(received,)),
            ConnectionStatistics(name="z:1->0", peer=1, producing=True, streams=(sent,)),
        ),
    )
    assert stream_lines(found) == [
        "node 0: z:0->2, from node 2, 1 streams",
        "  partition 5 (not running): received 0.0 MB in 1 frames",
        "node 0: z:1->0, to node 1, 1 streams",
        "  partition 3: sent 1.5 MB in 2 frames, up to offset 9, 4 rows not acknowledged",
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
    assert index_lines(status) == [
        "index by_age: 1 of 3 replicas have it, 70 % is done",
        "index by_name: 0 of 3 replicas have it, 0 % is",
    ]
    assert not index_lines(None)
