"""What zones know of each other's copies: the slots of machines, over passes and restarts."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.copy_board import CopyBoard
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.model.world import Copy
from rezone.domain.observed.machine_limits import Rank, Turn
from rezone.kube.api.errors import UnreadableError
from rezone.resources.zone_status import DataNodeStatus, DistributionZoneStatus
from rezone.wire.messages import CopyProgress, ReplicaReport, Role

A, B = ZoneKey("ns", "a"), ZoneKey("ns", "b")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Zone:
    """A zone with data nodes 0 and 1 on machines m0 and m1, as the board sees its runtime."""

    def __init__(self, key: ZoneKey, *, looked_at: bool = True) -> None:
        nodes = tuple(DataNodeStatus(id=n, pod_name="p", node_name=f"m{n}") for n in range(2))
        status = DistributionZoneStatus(data_nodes=nodes, current_task=f"{key.name}-7")
        self.key = key
        self.zone = SimpleNamespace(status=status)
        self.looked_at = looked_at
        self.replicas: dict[int, ReplicaReport] = {}
        self.monitor = self
        self.why: dict[int, str] = {}

    def nodes(self) -> dict[int, Any]:
        """Return node 1, which has copies under way, and node 0."""
        node_state = SimpleNamespace(replicas=self.replicas)
        silent = SimpleNamespace(node_state=SimpleNamespace(replicas={}), unreachable_since=None)
        return {0: silent, 1: SimpleNamespace(node_state=node_state, unreachable_since=None)}

    def copies(self, partition: int) -> None:
        """Have node 1 report that it copies a partition from node 0."""
        self.replicas[partition] = ReplicaReport(
            partition=partition,
            role=Role.LEARNER,
            leader=0,
            leader_epoch=1,
            partition_epoch=1,
            copy=CopyProgress(),
        )

    def note_refused(self, _owner: str, _now: float, why: dict[int, str]) -> None:
        """Keep why."""
        self.why = dict(why)


def board(*zones: Zone, limit: int = 1) -> CopyBoard:
    """Return a board that knows these zones."""
    made = CopyBoard(limit, cast("Any", {zone.key: zone for zone in zones}))
    made.expect([zone.key for zone in zones])
    return made


def ask(made: CopyBoard, zone: Zone, *partitions: int, rank: Rank = Rank.MOVE) -> list[int]:
    """Ask for copies from node 0 to node 1."""
    turn = Turn(rank, NOW, f"{zone.key.name}-7 of zone ns/{zone.key.name}")
    copies = [Copy(partition=p, source=0, targets=(1,)) for p in partitions]
    answer = made.admit(cast("Any", zone), f"uid-{zone.key.name}", turn, copies)
    return [copy.partition for copy in answer]


@pytest.mark.proves("B-03")
async def test_a_copy_that_was_let_begin_counts_before_it_is_reported() -> None:
    """Two zones whose passes follow each other would both take the last slot."""
    a, b = Zone(A), Zone(B)
    made = board(a, b)
    assert ask(made, a, 0) == [0]
    assert ask(made, b, 0) == []
    assert "a-7 of zone ns/a" in b.why[0]
    assert ask(made, a) == []
    assert ask(made, b, 0) == [0]


async def test_a_copy_that_was_let_begin_is_not_taken_back() -> None:
    """It may run already, though no report says so: the machine would be overrun by one."""
    a, b = Zone(A), Zone(B)
    made = board(a, b)
    assert ask(made, a, 0) == [0]
    assert ask(made, b, 0, rank=Rank.REPAIR) == []
    assert ask(made, a, 0, 1) == [0]
    assert "goes first" in a.why[1] or "m0" in a.why[1]


@pytest.mark.proves("B-03", "OP-02")
async def test_a_new_coordinator_knows_copies_by_the_reports() -> None:
    """A restart would forget the other zone's copies, and overrun the machine."""
    a, b = Zone(A), Zone(B)
    b.copies(3)
    made = board(a, b)
    assert ask(made, a, 0) == []
    assert "task b-7 of zone ns/b" in a.why[0]
    assert ask(made, b, 3) == [3], "its own copy is asked for again, and goes on"


@pytest.mark.proves("OP-02")
async def test_no_copy_begins_before_all_zones_were_looked_at() -> None:
    """A copy that runs in a zone that was not looked at yet would not be counted."""
    a, b = Zone(A), Zone(B, looked_at=False)
    a.copies(1)
    made = board(a, b, limit=4)
    assert ask(made, a, 0, 1) == [1], "what runs goes on"
    assert "just begun" in a.why[0]
    b.looked_at = True
    assert ask(made, a, 0, 1) == [1, 0]


async def test_a_zone_that_is_gone_is_not_waited_for() -> None:
    """Its last refusal, or its first look, would hold up all others."""
    a, b = Zone(A), Zone(B, looked_at=False)
    made = board(a, b)
    made.forget(B)
    assert ask(made, a, 0) == [0]


@pytest.mark.proves("TR-03")
async def test_a_zone_that_cannot_be_read_is_not_waited_for() -> None:
    """Copies of all zones would wait half a minute after each restart, as long as it is there."""
    coordinator, a = Coordinator(cast("Any", None), CoordinatorSettings(), 1), Zone(A)
    coordinator.copy_board.expect([B])
    assert ask(coordinator.copy_board, a, 0) == []

    async def fails(_: ObjectKey) -> float | None:
        raise UnreadableError("status.dataNodes")

    coordinator.register(Kind.ZONE, fails)
    with pytest.raises(UnreadableError):
        await coordinator._reconcile(B.object_key)
    assert ask(coordinator.copy_board, a, 0) == [0]
    await coordinator.close()
