"""New partitions are compared with old ones in the range that they have in common (B-04)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_controller_nodes import Node, digest

from rezone.controller.heard import Heard
from rezone.controller.monitor import WatchedNode
from rezone.controller.verify import CopyDiffersError, verify_part
from rezone.wire.flight import NodeClient
from rezone.wire.layouts import Overlap
from rezone.wire.messages import DigestRequest, ImportProgress, ReplicaReport, Role

PART = Overlap(start=16, end=48, old=1, new=16_384)
PAUSES = (0.0, 0.0)


class Sides:
    """The nodes that lead both sides, and who asks them."""

    def __init__(self, executor: ThreadPoolExecutor, source: Node, heir: Node) -> None:
        self.source, self.heir = source, heir
        self._executor = executor
        self._watched = [
            WatchedNode(n, node.address, NodeClient(node.address))
            for n, node in enumerate((source, heir))
        ]

    def heard(self, lag_rows: int | None) -> None:
        """Let the heir have said how far its import is."""
        progress = ImportProgress(source=PART.old, filled=True, lag_rows=lag_rows)
        report = ReplicaReport(
            partition=PART.new,
            role=Role.LEADER,
            leader=1,
            leader_epoch=1,
            partition_epoch=2,
            imports=(progress,),
        )
        self._watched[1].heard = Heard(
            process_id="p", zone_uid="u", version=1, leaving=False, replicas={PART.new: report}
        )

    async def verify(self) -> bool:
        """Compare."""
        return await verify_part(self._executor, PART, *self._watched, pauses_seconds=PAUSES)


@pytest.fixture
def sides() -> Iterator[Sides]:
    """Serve both sides."""
    with Node() as source, Node() as heir, ThreadPoolExecutor(2) as executor:
        yield Sides(executor, source, heir)


@pytest.mark.proves("B-04")
async def test_both_sides_are_asked_for_their_range_at_the_source_s_time(sides: Sides) -> None:
    """Rows beside the range would differ for ever, and rows of two times under writes."""
    sides.source.digests = [digest("a", "b")]
    sides.heir.digests = [digest("a", "x"), digest("a", "b")]
    assert await sides.verify()
    (first,) = sides.source.take(DigestRequest)
    assert (first.partition, first.as_of, first.hashes) == (PART.old, None, (16, 47))
    for asked in sides.heir.take(DigestRequest):
        assert (asked.partition, asked.as_of, asked.hashes) == (PART.new, 77, (16, 47))


@pytest.mark.parametrize("lag_rows", [3, None])
async def test_a_part_that_is_still_imported_is_not_wrong(
    sides: Sides, lag_rows: int | None
) -> None:
    """A re-sharding would be given up because a source's leader has just moved."""
    sides.heard(lag_rows)
    sides.source.digests = [digest("a"), digest("a")]
    sides.heir.digests = [digest("x"), digest("y")]
    assert not await sides.verify()


async def test_a_source_that_says_something_else_by_now_proves_nothing(sides: Sides) -> None:
    """Versions that were cleaned away meanwhile would count as rows that the heir has too many."""
    sides.heard(0)
    sides.source.digests = [digest("a"), digest("b")]
    sides.heir.digests = [digest("b"), digest("b")]
    assert not await sides.verify()


@pytest.mark.proves("B-04")
async def test_a_part_with_all_rows_that_differs_is_named(sides: Sides) -> None:
    """A new partition with wrong rows would serve."""
    sides.heard(0)
    sides.source.digests = [digest("a"), digest("a")]
    sides.heir.digests = [digest("x"), digest("x")]
    with pytest.raises(CopyDiffersError, match="partition 16384 on data node 1 differs"):
        await sides.verify()
