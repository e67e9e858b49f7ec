"""New partitions are compared with old ones in the range that they have in common (B-04)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from test_controller_nodes import Node, digest

from rezone.controller.nodes.monitor import WatchedNode
from rezone.controller.nodes.node_state import NodeState
from rezone.controller.nodes.verify import CopyDiffersError, DiffersSoFarError, verify_range
from rezone.wire.layouts import Overlap
from rezone.wire.messages import DigestRequest, ReplicaReport, ReshardProgress, Role
from rezone.wire.transport.flight import NodeClient

RANGE = Overlap(start=16, end=48, old=1, new=16_384)


class Sides:
    """The nodes that lead both sides, and who asks them."""

    def __init__(self, executor: ThreadPoolExecutor, source: Node, target: Node) -> None:
        self.source, self.target = source, target
        self._executor = executor
        self._watched = [
            WatchedNode(n, node.address, NodeClient(node.address))
            for n, node in enumerate((source, target))
        ]

    def node_state(self, **progress: Any) -> None:
        """Let the target have said how far its import is."""
        report = ReplicaReport(
            partition=RANGE.new,
            role=Role.LEADER,
            leader=1,
            leader_epoch=1,
            partition_epoch=2,
            reshard_progress=(ReshardProgress(source=RANGE.old, **progress),),
        )
        self._watched[1].node_state = NodeState(
            process_id="p",
            zone_uid="u",
            version=1,
            coordinator_epoch=0,
            leaving=False,
            replicas={RANGE.new: report},
        )

    async def verify(self) -> None:
        """Compare."""
        await verify_range(self._executor, RANGE, *self._watched)


@pytest.fixture
def sides() -> Iterator[Sides]:
    """Serve both sides."""
    with Node() as source, Node() as target, ThreadPoolExecutor(2) as executor:
        yield Sides(executor, source, target)


@pytest.mark.proves("B-04")
async def test_both_sides_are_asked_for_their_range_as_of_a_time_that_both_have_reached(
    sides: Sides,
) -> None:
    """Rows beside the range would differ for ever, and rows that are still on their way."""
    sides.node_state(backfilled=True, time=77)
    sides.source.digests = [digest("a", "b")]
    sides.target.digests = [digest("a", "b")]
    await sides.verify()
    for node, partition in ((sides.source, RANGE.old), (sides.target, RANGE.new)):
        (asked,) = node.take(DigestRequest)
        assert (asked.partition, asked.as_of, asked.hashes) == (partition, 77, (16, 47))


@pytest.mark.parametrize(
    "said", [{"backfilled": True}, {"time": 77}], ids=["no time", "not backfilled"]
)
async def test_before_a_target_has_told_a_time_one_difference_means_nothing(
    sides: Sides, said: dict[str, Any]
) -> None:
    """A re-sharding would be given up for rows that are on their way; or an empty range wait."""
    sides.node_state(**said)
    sides.source.digests = [digest("a"), digest("a")]
    sides.target.digests = [digest("x"), digest("a")]
    with pytest.raises(DiffersSoFarError, match="partition 16384 on data node 1 differs"):
        await sides.verify()
    await sides.verify()
    assert [asked.as_of for asked in sides.source.take(DigestRequest)] == [None, None]
    assert [asked.as_of for asked in sides.target.take(DigestRequest)] == [77, 77]


@pytest.mark.proves("B-04")
async def test_a_range_with_all_rows_that_differs_is_named(sides: Sides) -> None:
    """A new partition with wrong rows would serve."""
    sides.node_state(backfilled=True, time=77)
    sides.source.digests = [digest("a")]
    sides.target.digests = [digest("x")]
    with pytest.raises(CopyDiffersError, match="partition 16384 on data node 1 differs"):
        await sides.verify()
