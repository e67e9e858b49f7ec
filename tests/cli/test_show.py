"""What people see of a zone's streams."""

from __future__ import annotations

import pytest

from rezone.cli.show import stream_lines
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
