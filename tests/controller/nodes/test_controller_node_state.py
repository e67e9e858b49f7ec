"""Reports that tell changes only: put together they are the whole report, whatever gets lost."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rezone.controller.nodes.node_state import (
    NodeState,
    delta_of,
    follows,
    request_after,
    with_answer,
)
from rezone.controller.nodes.report_delta import EVERYTHING
from rezone.controller.observing.observe import node_views
from rezone.datanode.clock.checked_clock import Trouble
from rezone.datanode.node import report
from rezone.datanode.node.report import ReportBoard
from rezone.datanode.settings import NodeSettings, SystemClock
from rezone.resources.zone_status import DataNodeState, DataNodeStatus
from rezone.wire.messages import NodeReport, ReplicaReport, ReportRequest, Role

PARTITIONS = st.integers(0, 4)


@dataclasses.dataclass
class Replica:
    """A replica that can only change; `log_end` counts the changes of all lives."""

    partition_id: int
    log_end: int


def told(replica: Replica) -> ReplicaReport:
    """Return what a node says of it."""
    return ReplicaReport(
        partition=replica.partition_id,
        role=Role.FOLLOWER,
        leader=9,
        leader_epoch=1,
        partition_epoch=1,
        log_end_offset=replica.log_end,
    )


@pytest.fixture(autouse=True)
def _plain_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "replica_report", told)


class Node:
    """As much of a data node as its report needs: one process after the other."""

    node_id = 0
    zone = SimpleNamespace(
        configured=True,
        state=SimpleNamespace(config=SimpleNamespace(zone_uid="u"), coordinator_epoch=1),
    )

    def __init__(self) -> None:
        self.lives, self.changes, self.leaving = 0, 0, False
        self.space = SimpleNamespace(short=False, why="")
        self.clock = SimpleNamespace(trouble=Trouble())
        self.hearing = SimpleNamespace(heard=frozenset({1}))
        self.disk_speed = SimpleNamespace(sync_ms=0, slow_ms=0)
        self.foreground = SimpleNamespace(served_share=0.25)
        self.overwrites = SimpleNamespace(asked="", silent=False)
        self.replicas: dict[int, Replica] = {}
        self.restart()

    def partitions(self) -> list[Replica]:
        """Return what is open."""
        return list(self.replicas.values())

    def restart(self) -> None:
        """Begin again at version 1, with the same replicas."""
        self.lives += 1
        self.board = ReportBoard(SimpleNamespace(), NodeSettings(), f"life {self.lives}")
        self.leaving = False

    def change(self, partition: int, *, at_once: bool) -> None:
        """Change a replica, or open it."""
        self.changes += 1
        self.replicas[partition] = Replica(partition, self.changes)
        self.board.touched(partition, at_once=at_once)

    def drop(self, partition: int) -> None:
        """Drop a replica, if there is one."""
        if self.replicas.pop(partition, None) is not None:
            self.board.touched(partition, at_once=True)

    def leave(self) -> None:
        """Say that it stops."""
        self.leaving = True
        self.board.touched(None, at_once=True)

    def set_clock(self, trouble: Trouble) -> None:
        """Say what is wrong with the clock."""
        self.clock.trouble = trouble
        self.board.touched(None, at_once=True)

    def set_overwrite(self, asked: str, *, silent: bool = False) -> None:
        """Say which overwrite it is asked for, or that none was for long."""
        self.overwrites = SimpleNamespace(asked=asked, silent=silent)
        self.board.touched(None, at_once=True)

    def answer(self, node_state: NodeState | None) -> NodeReport:
        """Answer the poll of a coordinator that knows so much."""
        return self.board.build(self, request_after(node_state, timeout_ms=1))  # type: ignore[arg-type]


class Polling(RuleBasedStateMachine):
    """A coordinator polls a node; answers are lost, late, doubled; both begin again at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.node_state: NodeState | None = None
        self.answers: list[NodeReport] = []
        self.clock = 0.0

    @rule(partition=PARTITIONS, at_once=st.booleans())
    def change(self, partition: int, at_once: bool) -> None:
        """Change a replica."""
        self.node.change(partition, at_once=at_once or partition not in self.node.replicas)

    @rule(partition=PARTITIONS)
    def drop(self, partition: int) -> None:
        """Drop a replica."""
        self.node.drop(partition)

    @rule()
    def leave(self) -> None:
        """Tell the node to stop."""
        self.node.leave()

    @rule()
    def restart_node(self) -> None:
        """End the node's process and begin another one."""
        self.node.restart()

    @rule()
    def restart_coordinator(self) -> None:
        """Begin as a coordinator that knows nothing."""
        self.node_state = None

    @rule()
    def poll(self) -> None:
        """Have the node answer; the answer is on its way then."""
        self.answers.append(self.node.answer(self.node_state))

    @rule(data=st.data(), again=st.booleans())
    def deliver(self, data: Any, again: bool) -> None:
        """Let any answer arrive, or one arrive a second time."""
        if self.answers:
            at = data.draw(st.integers(0, len(self.answers) - 1))
            answer = self.answers[at] if again else self.answers.pop(at)
            self.take(answer)

    def take(self, answer: NodeReport) -> None:
        """Put an answer on top, when it fits."""
        if follows(self.node_state, answer):
            self.node_state = with_answer(self.node_state, answer)

    @invariant()
    def one_more_poll_tells_all(self) -> None:
        """Whatever was lost, the next answer makes up for it: there is no gap that lasts."""
        node, node_state = self.node, self.node_state
        self.clock += 1.0
        node.board.tick(self.clock)
        answer = node.answer(node_state)
        assert follows(node_state, answer)
        known = with_answer(node_state, answer)
        assert dict(known.replicas) == {p: told(r) for p, r in node.replicas.items()}
        assert known.leaving == node.leaving
        assert len(answer.replicas) <= len(node.replicas)


Polling.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class TestPolling(Polling.TestCase):  # type: ignore[misc, valid-type]
    """A missed change would keep a rebalance waiting, or a dead copy in the books."""

    pytestmark = pytest.mark.proves("ZR-09")


@pytest.fixture
def node() -> Iterator[Node]:
    """Yield a node with many replicas."""
    it = Node()
    for partition in range(1000):
        it.change(partition, at_once=True)
    yield it
    it.board.close()


def test_an_answer_holds_what_has_changed_and_no_more(node: Node) -> None:
    """Each move of one leader would cost a report of all the node's replicas."""
    whole = node.answer(None)
    assert (whole.since, len(whole.replicas)) == (0, 1000)
    node_state = with_answer(None, whole)
    node.change(7, at_once=True)
    node.drop(8)
    answer = node.answer(node_state)
    assert [r.partition for r in answer.replicas] == [7]
    assert (answer.since, answer.gone) == (whole.version, (8,))
    assert with_answer(node_state, answer).replicas[6] is node_state.replicas[6]


def test_a_poll_waits_only_for_what_it_does_not_know(node: Node) -> None:
    """A restarted node that has come as far as the old one would be silent about it."""
    node_state = with_answer(None, node.answer(None))
    seen = request_after(node_state, timeout_ms=1)
    assert not node.board.has_changes(seen)
    assert node.board.has_changes(ReportRequest(seen=node_state.version, process_id="another life"))
    node.change(1, at_once=False)
    assert not node.board.has_changes(seen)
    node.board.tick(1.0)
    assert node.board.has_changes(seen)


class Pausing(threading.Event):
    """Notes for how long it was waited for, and does something meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._meanwhile = meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once."""
        assert timeout is not None
        self.seconds.append(timeout)
        self._meanwhile()
        return False


def test_the_steps_of_a_move_come_in_one_answer() -> None:
    """Reports of each step would be made while clients wait for the end of the move."""
    board = ReportBoard(SystemClock(), NodeSettings(report_pause_ms=10), "life")
    pausing = board._ended = Pausing(lambda: board.touched(2, at_once=True))
    seen = ReportRequest(seen=board._version, process_id="life")
    board.touched(1, at_once=True)
    board.wait(seen, 60)
    assert board._changed_at.keys() == {1, 2}
    assert pausing.seconds == [pytest.approx(0.01)]
    board.wait(seen, 0.002)
    assert pausing.seconds[1] <= 0.002, "no longer than the caller waits"
    board.wait(ReportRequest(seen=0, process_id="another life"), 60)
    assert len(pausing.seconds) == 2, "who knows nothing of this process is told at once"


def test_changes_count_only_on_top_of_what_they_were_asked_for(node: Node) -> None:
    """An answer that arrives late would leave out what changed between the two versions."""
    first = with_answer(None, node.answer(None))
    node.change(1, at_once=True)
    second = with_answer(first, node.answer(first))
    node.change(2, at_once=True)
    late = node.answer(second)
    assert follows(second, late)
    assert not follows(first, late)
    assert not follows(None, late)
    assert not follows(dataclasses.replace(second, process_id="another life"), late)
    assert follows(None, node.answer(None))
    assert follows(first, node.answer(None))


@pytest.mark.proves("NW-05")
def test_a_node_whose_clock_is_off_is_one_that_gives_way() -> None:
    """Its partitions would take no write for as long as its clock is wrong."""
    node = Node()
    well = with_answer(None, node.answer(None))
    node.set_clock(Trouble("its clock was set"))
    was_set = with_answer(well, node.answer(well))
    assert delta_of(well, was_set) == EVERYTHING
    node.set_clock(Trouble("it is a month ahead", off=True))
    off = with_answer(was_set, node.answer(was_set))
    assert delta_of(was_set, off) == EVERYTHING
    monitor: Any = SimpleNamespace(get=None, silent_since=lambda _: None)
    status = DataNodeStatus(id=0, pod_name="p", address="a", state=DataNodeState.ACTIVE)
    for node_state, leaves in ((well, False), (was_set, False), (off, True)):
        seen = SimpleNamespace(reachable=True, node_state=node_state, is_fresh=lambda _: False)
        monitor.get = lambda _, seen=seen: seen
        view = node_views([status], monitor, datetime.now(UTC))[0]
        assert (view.leaving, view.clock_text) == (leaves, node_state.clock_text)


@pytest.mark.proves("SP-05")
def test_an_overwrite_that_a_node_is_asked_for_is_told_at_once() -> None:
    """A driver would wait for the next look at the whole zone, or be waited for when it is gone."""
    node = Node()
    before = with_answer(None, node.answer(None))
    for asked, silent in (("nightly", False), ("", False), ("", True)):
        node.set_overwrite(asked, silent=silent)
        after = with_answer(before, node.answer(before))
        assert (after.overwrite, after.overwrite_silent) == (asked, silent)
        assert delta_of(before, after) == EVERYTHING
        before = after
