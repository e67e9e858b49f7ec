"""RebalanceTask: targets that fail, what stays, and who takes their place."""

import pytest
from rebalance_case import Case, condition, late, only
from worlds import NEW, OLD, record, text

from rezone.domain.model import world
from rezone.domain.model.world import StalledCopy
from rezone.domain.planner.substitute import Substitutes, substitute
from rezone.resources.conditions import ConditionType, Reason
from rezone.resources.task import TaskState as S
from rezone.resources.task import TaskType
from rezone.wire.messages import CopyProgress


def one_moved(state: S = S.TRANSFERRING) -> Case:
    """Return a task of which partition 0 has moved and partition 1 copies to node 4, now lost."""
    target = (NEW[0], (1, 2, 4))
    case = Case(state)
    case.world.pend(target)
    case.world.nodes = 6
    case.world.routes = [
        record(leader=1, leader_epoch=5, replicas=(1, 2, 3), isr=(1, 2, 3)),
        record(leader=1, replicas=(0, 1, 2, 4)),
    ]
    case.world.reports[1, 4] = {"needs_snapshot": True}
    case.world.lost = {4}
    case.world.silent = {4: 999.0}
    case.status["target"] = text(target)
    return case


@pytest.mark.proves("ZR-04", "ZR-10", "ZR-18", "B-01")
def test_a_lost_targets_place_is_taken_in_the_next_plan() -> None:
    """The task asks for the next plan first, and then ends with what is done.

    Otherwise one lost node would undo all that has moved, or nobody would carry the rest on.
    """
    case = one_moved()
    decision = case.decide()
    asked = only(decision, world.WritePending)
    assert (asked.target, asked.revision) == ((NEW[0], (1, 2, 5)), 3)
    assert decision.status.outcome == ""
    case.world.settings |= {"planned": asked.target, "change": 3}
    decision = case.decide()
    assert decision.status.outcome == text((NEW[0], OLD[1]))
    assert decision.status.target == text((NEW[0], (1, 2, 4))), "the plan was approved as it is"
    written = only(decision, world.WriteStable)
    assert (written.revision, written.target) == (2, (NEW[0], OLD[1]))
    assert decision.status.last_error is not None
    assert decision.status.last_error.reason == Reason.TARGET_REPLACED


@pytest.mark.proves("B-15")
def test_the_end_of_a_task_with_a_failed_target_lists_its_partitions() -> None:
    """The end says how many partitions were completed and rolled back, and why.

    Otherwise a person could not tell what is left to do; stalled only if nobody else does it.
    """
    case = one_moved()
    case.world.settings |= {"replace_failed_targets": False}
    case.status |= {"last_error": case.decide().status.last_error}
    case.state, outcome = S.STOPPING_REDUNDANT, (NEW[0], OLD[1])
    case.status |= {"outcome": text(outcome)}
    case.world.routes[1] = record(leader=1)
    case.world.reports.clear()
    case.world.settings |= {"stable": outcome, "pending": None, "pending_revision": 0}
    decision = case.decide()
    assert decision.status.state == S.FAILED
    stalled = condition(decision, ConditionType.STALLED)
    assert stalled.reason == Reason.TARGET_LOST
    assert "data nodes [4] are lost" in stalled.message
    assert "apply another RebalanceTask" in stalled.message
    assert "0 kept, 1 rolled back, 1 completed" in stalled.message


@pytest.mark.parametrize("how", ["by policy", "named by a person", "no node is as good"])
def test_where_a_target_is_not_replaced_the_rest_goes_on(how: str) -> None:
    """Only the partition with the failed target stays; nothing is asked of the zone's keys.

    Otherwise the other moves would be given up with it.
    """
    case = one_moved()
    case.world.routes[0] = record(replicas=(0, 1, 2, 3))
    case.world.reports[0, 3] = {"needs_snapshot": True}
    if how == "by policy":
        case.world.settings["replace_failed_targets"] = False
    elif how == "named by a person":
        case.spec |= {"type": TaskType.MOVES}
    else:
        case.world.domains = {4: "a", 5: "b", 3: "b", 2: "b", 1: "b"}
    decision = case.decide()
    assert decision.status.outcome == text((NEW[0], OLD[1]))
    assert decision.status.state == S.TRANSFERRING
    assert [c.partition for c in only(decision, world.PullSnapshots).copies] == [0]


@pytest.mark.proves("B-01")
def test_under_manual_approval_the_approved_moves_go_on_without_the_failed_one() -> None:
    """The next plan waits for a person's word; what was approved already does not.

    Otherwise the moves that a person has approved would stand still for a word on another plan.
    """
    case = one_moved()
    case.world.routes[0] = record(replicas=(0, 1, 2, 3))
    case.world.reports[0, 3] = {"needs_snapshot": True}
    case.world.settings |= {"manual_approval": True, "planned": (NEW[0], (1, 2, 5)), "change": 3}
    decision = case.decide()
    assert decision.status.outcome == text((NEW[0], OLD[1]))
    assert [c.partition for c in only(decision, world.PullSnapshots).copies] == [0]


def switched(replicas: tuple[int, ...]) -> Case:
    """Return a task whose partition 0 has switched, and whose copy on node 3 is without data."""
    case = Case(S.TRANSFERRING)
    case.world.settings["replace_failed_targets"] = False
    isr = tuple(node for node in replicas if node != 3)
    case.world.routes[0] = record(leader=1, leader_epoch=5, replicas=replicas, isr=isr)
    case.world.reports[0, 3] = {"needs_snapshot": True}
    case.world.verified.clear()
    return case


@pytest.mark.proves("B-14", "B-15")
@pytest.mark.parametrize("replicas", [(0, 1, 2, 3), (1, 2, 3)], ids=["switched", "relieved"])
def test_a_copy_that_fails_when_its_partition_has_switched_ends_the_task(
    replicas: tuple[int, ...],
) -> None:
    """What has switched stays; the task ends with the reason, and the zone goes on copying.

    The task would wait for that copy for ever, and tell nobody.
    """
    case = switched(replicas)
    assert only(case.decide(), world.PullSnapshots).copies[0].targets == (3,)
    full = StalledCopy(reason=Reason.NO_SPACE, seconds=700.0, error="no space left")
    case.world.settings["stalled_copies"] = {(0, 3): full}
    decision = case.decide()
    assert decision.status.outcome == text(NEW)
    assert only(decision, world.WriteStable).target == NEW
    assert decision.status.last_error is not None
    assert decision.status.last_error.reason == Reason.NO_SPACE
    case.state = S.STOPPING_REDUNDANT
    case.status |= {"outcome": text(NEW), "last_error": decision.status.last_error}
    case.world.settings |= {"stable": NEW, "pending": None, "pending_revision": 0}
    late(case)
    decision = case.decide()
    assert decision.status.state == S.FAILED
    assert condition(decision, ConditionType.STALLED).reason == Reason.NO_SPACE


@pytest.mark.proves("B-04", "B-14", "B-15")
def test_a_copy_that_differs_again_when_its_partition_has_switched_ends_the_task() -> None:
    """The fourth difference ends the task also where the old replica has gone.

    The task would say that it verifies, for ever.
    """
    target = ((0, 1, 3), OLD[1])
    case = Case(S.SWITCHING)
    case.world.pend(target)
    case.status |= {"target": text(target), "copies_dropped": 3}
    case.world.routes[0] = record(replicas=(0, 1, 3), isr=(0, 1, 3))
    case.world.verified.clear()
    case.world.mismatched = {(0, 3, 4)}
    decision = case.decide()
    assert decision.status.outcome == text(target)
    assert only(decision, world.WriteStable).target == target
    assert decision.status.last_error is not None
    assert decision.status.last_error.reason == Reason.COPY_DIFFERS


def test_a_lost_node_of_a_partition_that_stays_is_left_to_the_zone() -> None:
    """A lost node that the task does not move to holds the task up no more, and is not replaced.

    Otherwise it would be replaced before scaleDownSeconds are over, or the task never end.
    """
    case = Case(S.SWITCHING)
    target = (NEW[0], OLD[1])
    case.world.routes = [
        record(leader=1, leader_epoch=5, replicas=(1, 2, 3), isr=(1, 2, 3)),
        record(leader=1, isr=(1, 2)),
    ]
    case.world.lost, case.world.silent = {0}, {0: 999.0}
    decision = case.decide()
    assert only(decision, world.WriteStable).target == target
    assert decision.status.outcome == ""


def test_what_is_planned_for_a_lost_node_need_not_wait_for_all_copies() -> None:
    """Once the zone has planned what replaces a lost node, the task ends with what is done.

    Otherwise partitions would be a replica short until all copies of another plan are made.
    """
    case = one_moved()
    case.world.lost, case.world.silent = {0}, {0: 999.0}
    case.status["target"] = text((NEW[0], (1, 0, 4)))
    case.status["source"] = text((OLD[0], (1, 2, 0)))
    case.world.pend((NEW[0], (1, 0, 4)))
    planned = (NEW[0], (1, 2, 4))
    case.world.settings |= {"planned": planned, "change": 3}
    assert only(case.decide(), world.WriteStable).target == (NEW[0], OLD[1])


def test_a_failed_target_waits_while_the_task_is_paused() -> None:
    """A pause starts no other plan.

    Otherwise a person could not look at what has failed before something moves.
    """
    case = one_moved()
    case.spec["suspend"] = True
    decision = case.decide()
    assert (decision.actions, decision.status.outcome) == ((), "")


def able(*nodes: int, **domains: str) -> Substitutes:
    """Return nodes of weight 1 that may take a replica; domains of nodes as n0="a"."""
    names = {int(name[1:]): domain for name, domain in domains.items()}
    return Substitutes(weights=dict.fromkeys(nodes, 1), domains=names)


@pytest.mark.proves("B-02")
def test_a_substitute_is_as_good_as_what_it_stands_in_for() -> None:
    """A substitute keeps the spread over failure domains, and the least loaded is taken.

    Otherwise one failed copy would cost a zone its spread, or fill one node with all of them.
    """
    topology = ((0, 1), (0, 2), (0, 3))
    source = ((0, 9), (0, 9), (0, 9))
    assert substitute(topology, {0: frozenset({1})}, able(2, 3, 4, 9), source) == {0: (0, 4)}
    spread = able(2, 3, 4, n0="a", n1="b", n2="a", n3="b", n4="a")
    assert substitute(topology, {0: frozenset({1})}, spread, source) == {0: (0, 3)}
    alone = able(2, 4, n0="a", n1="b", n2="a", n4="a")
    assert substitute(topology, {0: frozenset({1})}, alone, source) == {}
    assert substitute(topology, {0: frozenset({0, 1})}, able(3, 4), source) == {0: (4, 3)}
    heavy = Substitutes(weights={3: 4, 4: 1}, domains={})
    both = {0: frozenset({1}), 1: frozenset({2})}
    assert substitute(topology, both, heavy, source) == {0: (0, 3), 1: (0, 3)}


def stalled_copy(*, full: bool = True) -> StalledCopy:
    """Return a copy that stands still."""
    reason = Reason.NO_SPACE if full else Reason.PROGRESS_DEADLINE_EXCEEDED
    return StalledCopy(reason=reason, seconds=601.0, error="No space left on device")


def one_full(**changes: object) -> Case:
    """Return `one_moved` with node 4 there, but full."""
    case = one_moved()
    case.world.lost, case.world.silent = set(), {}
    case.world.settings |= {"stalled_copies": {(1, 4): stalled_copy()}, **changes}
    return case


@pytest.mark.proves("ZR-18", "B-14")
def test_a_copy_that_stands_still_for_too_long_is_made_on_another_node() -> None:
    """A full receiver is replaced, by none that has failed lately.

    Otherwise it would be asked again for ever, and Transferring have no end.
    """
    case = one_full()
    assert only(case.decide(), world.WritePending).target == (NEW[0], (1, 2, 5))
    case.world.settings["avoided"] = frozenset({3, 5})
    decision = case.decide()
    assert decision.status.outcome == text((NEW[0], OLD[1]))
    error = decision.status.last_error
    assert error is not None
    assert error.reason == Reason.NO_SPACE
    assert error.message.startswith(
        "the copy of partition 1 to data node 4 has stood still for 601 s: No space left on device"
    )
    assert "apply another RebalanceTask" in error.message
    case.world.settings["stalled_copies"] = {(1, 4): stalled_copy(full=False)}
    error = case.decide().status.last_error
    assert error is not None
    assert error.reason == Reason.PROGRESS_DEADLINE_EXCEEDED


def test_a_full_node_has_time_while_a_partition_is_about_to_leave_it() -> None:
    """A copy to a full node waits while another partition frees room there, unless that stands too.

    Otherwise two nodes could never change places, or two full ones would wait for each other.
    """
    source, target = ((0, 1, 2), (0, 1, 4)), ((0, 1, 4), (0, 1, 2))
    case = Case(S.TRANSFERRING)
    case.world.nodes = 6
    case.world.pend(target)
    case.world.settings["stable"] = source
    case.world.routes = [
        record(replicas=(0, 1, 2, 4)),
        record(replicas=(0, 1, 2, 4), isr=(0, 1, 4)),
    ]
    case.world.reports = {(0, 4): {"needs_snapshot": True}, (1, 2): {"needs_snapshot": True}}
    case.status |= {"source": text(source), "target": text(target)}
    case.world.settings["stalled_copies"] = {(0, 4): stalled_copy()}
    decision = case.decide()
    assert not [a for a in decision.actions if isinstance(a, world.WritePending)]
    assert decision.status.outcome == ""
    case.world.settings["stalled_copies"] |= {(1, 2): stalled_copy()}
    assert only(case.decide(), world.WritePending)


@pytest.mark.proves("ZR-11")
def test_copies_that_free_room_go_first() -> None:
    """Of many copies those to nodes that give nothing away begin, those that have failed last.

    Otherwise a full node would be asked again and again before anything has left it.
    """
    source, target = ((0, 1, 2), (0, 1, 3), (0, 1, 2)), ((0, 1, 3), (0, 1, 4), (0, 1, 5))
    case = Case(S.TRANSFERRING)
    case.world.nodes = 6
    case.world.pend(target)
    case.world.settings |= {"stable": source, "max_concurrent_migrations": 1}
    case.world.routes = [
        record(isr=old, replicas=(*old, new[2])) for old, new in zip(source, target, strict=True)
    ]
    new = ((0, 3), (1, 4), (2, 5))
    case.world.reports = {key: {"needs_snapshot": True} for key in new}
    case.status |= {"source": text(source), "target": text(target)}
    assert [c.partition for c in only(case.decide(), world.PullSnapshots).copies] == [1]
    failed = {"needs_snapshot": True, "copy": CopyProgress(error="No space left on device")}
    case.world.reports[1, 4] = failed
    assert [c.partition for c in only(case.decide(), world.PullSnapshots).copies] == [2]
