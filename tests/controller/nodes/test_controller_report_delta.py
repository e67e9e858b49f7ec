"""What of a data node's report wakes whom."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rezone.controller.coordination.coordinator import PROGRESS_SECONDS, Coordinator
from rezone.controller.nodes.node_state import NodeState, delta_of, with_answer
from rezone.controller.nodes.report_delta import EVERYTHING, ReportDelta
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey, owning_tasks
from rezone.controller.work.settings import CoordinatorSettings
from rezone.wire.messages import CopyProgress, NodeReport, ReplicaReport, Role

ZONE = ZoneKey("ns", "z")
TASK = ObjectKey(Kind.TASK, "ns", "t")
MOVE = ObjectKey(Kind.MIGRATION, "ns", "m")


def replica(partition: int, **changes: Any) -> ReplicaReport:
    """Return a leader's report."""
    base = ReplicaReport(
        partition=partition,
        role=Role.LEADER,
        leader=0,
        leader_epoch=1,
        partition_epoch=1,
        revision=1,
        log_end_offset=10,
        durable_offset=10,
        committed_offset=10,
        kv_applied_offset=10,
        needs_snapshot=False,
        follower_offsets={1: 10},
    )
    return msgspec.structs.replace(base, **changes)


def report(*replicas: ReplicaReport, process_id: str = "p", version: int = 1) -> NodeState:
    """Return what was heard of a node."""
    whole = NodeReport(
        node=0,
        zone_uid="u",
        version=version,
        coordinator_epoch=1,
        replicas=replicas,
        process_id=process_id,
    )
    return with_answer(None, whole)


BEFORE = report(replica(0), replica(1))


def test_the_same_report_is_no_news() -> None:
    """Each answered poll would cost the API server a pass."""
    assert delta_of(BEFORE, report(replica(0), replica(1), version=2)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"log_end_offset": 11},
        {"committed_offset": 11, "durable_offset": 11, "kv_applied_offset": 11},
        {"follower_offsets": {1: 12}},
        {"rows_estimate": 5},
        {"copy": CopyProgress(rows=3, bytes=4)},
    ],
)
def test_offsets_are_progress_only(changes: dict[str, Any]) -> None:
    """Every acknowledged write would be looked at by the operator at once."""
    copying = report(replica(0, copy=CopyProgress(rows=1, bytes=1)), replica(1))
    before = copying if "copy" in changes else BEFORE
    delta = delta_of(before, report(replica(0, **changes), replica(1)))
    assert delta == ReportDelta(frozenset(), progress=True)
    assert not delta.urgent


@pytest.mark.parametrize(
    "changes",
    [
        {"role": Role.FOLLOWER},
        {"leader_epoch": 2},
        {"error": "disk full"},
        {"needs_snapshot": True},
        {"copy": CopyProgress(done=True)},
        {"follower_offsets": {1: 10, 2: 0}},
        {"takeover_error": "behind"},
    ],
)
def test_a_change_of_state_is_urgent_for_its_partition(changes: dict[str, Any]) -> None:
    """A failed copy or a finished handover would be seen late."""
    delta = delta_of(BEFORE, report(replica(0), replica(1, **changes)))
    assert delta == ReportDelta(frozenset({1}), progress=True)
    assert delta.urgent


def test_replicas_that_come_and_go_and_restarts_are_urgent() -> None:
    """A node that lost its replicas, or its memory, would be believed."""
    assert delta_of(BEFORE, report(replica(0))) == ReportDelta(frozenset({1}), progress=True)
    assert delta_of(BEFORE, report(replica(0), replica(1), process_id="q")) is EVERYTHING


class Queue:
    """Notes what was put."""

    def __init__(self) -> None:
        self.put_now: set[ObjectKey] = set()
        self.put_later: set[ObjectKey] = set()

    def put(self, key: ObjectKey, delay_seconds: float = 0.0) -> None:
        """Note it."""
        assert delay_seconds in (0.0, PROGRESS_SECONDS)
        (self.put_later if delay_seconds else self.put_now).add(key)


@pytest.mark.parametrize(
    ("delta", "now", "later"),
    [
        (EVERYTHING, {ZONE.object_key, TASK, MOVE}, set()),
        (ReportDelta(frozenset({3}), progress=True), {ZONE.object_key, TASK, MOVE}, set()),
        (ReportDelta(frozenset({4}), progress=True), {ZONE.object_key, TASK}, {MOVE}),
        (ReportDelta(frozenset(), progress=True), set(), {TASK, MOVE}),
    ],
)
async def test_who_is_woken(delta: ReportDelta, now: set[ObjectKey], later: set[ObjectKey]) -> None:
    """A busy partition would wake everything, or a migration not hear of its own partition."""
    coordinator = Coordinator(None, CoordinatorSettings(), 1)  # type: ignore[arg-type]
    queue = Queue()
    coordinator.queue = queue  # type: ignore[assignment]
    coordinator.follow(ZONE, TASK, None)
    coordinator.follow(ZONE, MOVE, 3)
    coordinator.tell(ZONE, delta)
    assert (queue.put_now, queue.put_later) == (now, later)
    coordinator.unfollow(MOVE)
    coordinator.tell(ZONE, EVERYTHING)
    assert (MOVE in queue.put_now) == (MOVE in now)


def test_a_task_is_woken_by_what_is_made_for_it() -> None:
    """A task would learn of its migrations' ends by chance."""
    owners = [{"kind": "RebalanceTask", "name": "t"}, {"kind": "DistributionZone", "name": "z"}]
    assert owning_tasks("ns", {"metadata": {"ownerReferences": owners}}) == [TASK]
    assert owning_tasks("ns", {"metadata": {}}) == []
