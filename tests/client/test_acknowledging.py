"""What a token acknowledges of each partition, and whom of the data nodes that takes."""

from __future__ import annotations

import pytest

from rezone.client.feed.acknowledging import acknowledged, tell_all
from rezone.client.feed.token import RangePosition
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError
from rezone.wire.layouts import Segment
from rezone.wire.messages import Ack, AcknowledgeChanges, AcknowledgedPartition

REQUEST = AcknowledgeChanges(feed="a", partitions=(AcknowledgedPartition(0, 5),))


@pytest.mark.proves("CF-04")
def test_a_partition_is_acknowledged_up_to_its_earliest_range() -> None:
    """What one of its ranges still needs would be trimmed, of a token of another layout, too."""
    segments = [Segment(0, 10, 0), Segment(10, 20, 1), Segment(20, 30, 0), Segment(30, 40, 2)]
    positions = [
        *(RangePosition(0, 5, 7), RangePosition(5, 15, 3), RangePosition(15, 20, 9)),
        RangePosition(20, 35, 4),
    ]
    assert acknowledged(segments, positions) == (
        AcknowledgedPartition(0, 3),
        AcknowledgedPartition(1, 3),
    ), "of partition 2 a part is missing"
    assert acknowledged(segments, [RangePosition(0, 40, 6)]) == tuple(
        AcknowledgedPartition(partition, 6) for partition in range(3)
    )


class Node:
    """A node that answers, or raises."""

    def __init__(self, error: RezoneError | None = None) -> None:
        self.error = error
        self.told: list[AcknowledgeChanges] = []

    def call(self, request: AcknowledgeChanges, reply: type[Ack], *, timeout_seconds: float) -> Ack:
        """Take it."""
        assert timeout_seconds == 3.0
        if self.error is not None:
            raise self.error
        self.told.append(request)
        return reply()


@pytest.mark.proves("CF-04")
def test_one_node_that_takes_it_is_enough() -> None:
    """A feed would end because a node restarts, or go on though nobody knows its name."""
    away, strange, well = Node(NotReadyError("away")), Node(ConflictError("no feed")), Node()
    nodes = {"away": away, "strange": strange, "well": well}
    tell_all(nodes.__getitem__, ["well", "strange", "away"], REQUEST, 3.0)
    assert well.told == [REQUEST]
    with pytest.raises(ConflictError, match="no feed"):
        tell_all(nodes.__getitem__, ["strange", "away"], REQUEST, 3.0)
    with pytest.raises(NotReadyError, match="away"):
        tell_all(nodes.__getitem__, ["away"], REQUEST, 3.0)
    with pytest.raises(NotReadyError):
        tell_all(nodes.__getitem__, [], REQUEST, 3.0)
