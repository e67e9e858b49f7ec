"""The assignment keys: both pseudo-codes line by line, and what holds in every sequence of them."""

import dataclasses
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rezone.domain.assignment import assignments
from rezone.domain.assignment.assignments import SKIP, TopologyError
from rezone.domain.model.world import SettleLeader
from rezone.domain.routing.topology_text import Topology
from rezone.resources.zone_status import (
    RETAINED_MAX,
    Assignment,
    Assignments,
    CancelIntent,
    RetainedReplica,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A: Topology = ((0, 1, 2), (1, 2, 3))
B: Topology = ((1, 2, 3), (1, 2, 3))
C: Topology = ((3, 2, 1), (0, 1, 2))
LARGE: Topology = tuple((p % 997, p % 997 + 1, p % 997 + 2) for p in range(16_384))
DENSE = assignments.compact(LARGE)


def key(topology: Topology, revision: int) -> Assignment:
    """Return an assignment as it is stored."""
    return Assignment(revision=revision, replicas=assignments.compact(topology))


STABLE = Assignments(stable=key(A, 5), change=5)
MOVING = Assignments(stable=key(A, 5), pending=key(B, 7), change=7)
WAITING = Assignments(stable=key(A, 5), pending=key(B, 7), planned=key(C, 9), change=9)


def moved(
    partition: int,
    old: int,
    new: int,
    *,
    replicas: tuple[int, ...] = (),
    until: datetime | None = None,
) -> SettleLeader:
    """Return a move by hand; without `replicas` it leaves none beside the assignment."""
    return SettleLeader(
        partition=partition,
        old_leader=old,
        new_leader=new,
        replicas=replicas,
        migration="m",
        since=NOW,
        until=until,
    )


def kept(node: int, until: datetime | None) -> RetainedReplica:
    """Return what migration m keeps of partition 0."""
    return RetainedReplica(
        partition=0, node=node, migration="m", retained_time=NOW, retain_until_time=until
    )


# --- the compact text ---------------------------------------------------------------------------


def test_the_text_of_a_topology_is_the_documented_one() -> None:
    """Status written by an earlier operator could no longer be read."""
    assert assignments.compact(A) == "0,1,2;1,2,3"
    assert assignments.parse("0,1,2;1,2,3") == A
    assert DENSE.startswith("base36x2:000102;010203;020304;")
    assert assignments.parse(DENSE) == LARGE


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=7, unique=True).map(tuple),
        min_size=1,
        max_size=50,
    ).map(tuple)
)
def test_every_topology_comes_back_from_its_text(topology: Topology) -> None:
    """A partition would change its nodes or its preferred leader by being stored."""
    assert assignments.parse(assignments.compact(topology)) == topology


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "partition 0: '' is not a list of node ids"),
        ("0;", "partition 1: ''"),
        ("0,1;1,,2", "partition 1: '1,,2'"),
        ("0, 1", "partition 0"),
        ("+1", "partition 0"),
        ("-1", "partition 0"),
        ("01", "partition 0"),
        ("1_0", "partition 0"),
        ("\u0661", "partition 0"),
        ("x" * 100, "xxx...'"),
        ("0;1,1", "partition 1 names a node twice"),
        ("0,1,2,3,4,5,6,7", "partition 0 has 8 replicas, not 1 to 7"),
        ("2147483648", "node id 2147483648 is not 0 to"),
        (";".join(["0"] * 16_385), "1 to 16384 partitions, not 16385"),
        ("0" * 320_001, "320001 characters"),
        ("base36x2:000102", "not the one that is written"),
        ("base36x7:0000000", "how many digits"),
        (DENSE.replace("x2:", "x5:"), "is not a list of node ids"),
        (DENSE.replace("x2:00", "x2:0"), "partition 0: '0"),
        (DENSE.upper().replace("BASE36X", "base36x"), "not the one that is written"),
        (";".join(",".join(map(str, nodes)) for nodes in LARGE), "not the one that is written"),
    ],
)
def test_a_text_that_is_no_topology_is_refused_with_its_place(text: str, says: str) -> None:
    """A damaged status would be read as another assignment, and data would move."""
    with pytest.raises(TopologyError, match=says.replace("...", r"\.\.\.")):
        assignments.parse(text)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31 - 7), st.integers(13_200, 16_384))
def test_every_large_topology_comes_back_from_its_text(first: int, partitions: int) -> None:
    """A large zone's partitions would change their nodes by being stored."""
    topology = tuple(tuple(first + (p + i) % 6 for i in range(3)) for p in range(partitions))
    assert assignments.parse(assignments.compact(topology)) == topology


@pytest.mark.slow
def test_the_largest_zone_fits_into_the_status() -> None:
    """A zone at its limits could be created and then not be written."""
    largest = tuple(tuple(range(p % 1000, p % 1000 + 7)) for p in range(16_384))
    assert assignments.parse(assignments.compact(largest)) == largest


def test_a_topology_too_long_for_the_status_is_refused() -> None:
    """The API server would refuse the status in the middle of a rebalance."""
    huge = tuple(tuple(range(10**9, 10**9 + 7)) for _ in range(16_384))
    with pytest.raises(TopologyError, match="use fewer partitions"):
        assignments.compact(huge)


@pytest.mark.proves("ZR-19")
def test_the_cancel_of_a_large_rebalance_names_its_pair_by_their_keys() -> None:
    """Five assignments of a large zone have no room in one object: it could not be cancelled."""
    new = (LARGE[0][::-1], *LARGE[1:])
    keys = Assignments(stable=key(LARGE, 5), pending=key(new, 7), change=7)
    written, after = assignments.intend_cancel(keys, 7, LARGE, new)
    assert written
    assert after.cancel == CancelIntent(revision=7, old="", new="")
    written, after = assignments.intend_cancel(keys, 7, new, LARGE)
    assert after.cancel is not None
    assert assignments.parse(after.cancel.old) == new, "another pair than the keys' is written out"


@pytest.mark.proves("RM-07", "ZR-10")
def test_stable_follows_a_leader_that_a_person_has_moved() -> None:
    """The next rebalance would move it back, or a node without a replica would count as one."""
    after = assignments.settle(STABLE, moved(0, 0, 4))
    assert after == Assignments(stable=key(((4, 1, 2), (1, 2, 3)), 6), change=6)
    assert assignments.settle(after, moved(0, 0, 4)) is SKIP, "a repeat would be another change"
    assert assignments.settle(STABLE, moved(0, 0, 2)) is SKIP, "the preferred one is the planner's"
    # The old leader was none of the assignment's: what it stood in for was the first.
    after = assignments.settle(STABLE, moved(1, 9, 4))
    assert isinstance(after, Assignments)
    assert after.stable == key(((0, 1, 2), (4, 2, 3)), 6)


@pytest.mark.proves("RM-07")
def test_a_removed_leaders_place_goes_to_its_replacement() -> None:
    """The new leader comes first, the replacement last, and the old leader is kept with its end.

    The partition would have one place less, or the old leader's copy go before there is another.
    """
    move = dataclasses.replace(moved(0, 0, 2, replicas=(0, 1, 2), until=NOW), replacement=4)
    after = assignments.settle(STABLE, move)
    assert isinstance(after, Assignments)
    assert after.stable == key(((2, 1, 4), (1, 2, 3)), 6)
    assert after.retained == (kept(0, NOW),)
    assert assignments.settle(after, move) is SKIP, "a repeat would be another change"


def test_stable_follows_nobody_while_a_rebalance_is_pending() -> None:
    """The end of the rebalance would write over it, and its task would be superseded."""
    assert assignments.settle(MOVING, moved(0, 0, 4)) is SKIP
    assert assignments.settle(Assignments(), moved(0, 0, 4)) is SKIP
    assert assignments.settle(STABLE, moved(2, 0, 4)) is SKIP


@pytest.mark.proves("B-13")
def test_what_a_move_leaves_beside_the_assignment_is_kept_in_the_same_write() -> None:
    """A crash between the two would leave a replica that nobody takes away any more."""
    first = assignments.settle(STABLE, moved(0, 0, 4, replicas=(0, 1, 2, 4), until=NOW))
    assert isinstance(first, Assignments)
    assert first.retained == (kept(0, NOW),)
    # Back again: node 0 has its place again, and what led meanwhile is beside it.
    back = assignments.settle(first, moved(0, 4, 0, replicas=(0, 1, 2, 4)))
    assert isinstance(back, Assignments)
    assert back.stable == key(A, 7)
    assert back.retained == (kept(4, None),)
    # A leader that stood in for the first one: neither has a place any more.
    third = assignments.settle(first, moved(0, 0, 5, replicas=(0, 1, 2, 4, 5)))
    assert isinstance(third, Assignments)
    assert third.retained == (kept(0, None), kept(4, None))


def test_no_more_is_kept_than_the_status_has_room_for() -> None:
    """What is beyond that is not written down; the assignment follows the leader all the same.

    The status would be refused as too large in every pass, and the zone stand still.
    """
    many = tuple(
        RetainedReplica(partition=1, node=node, migration="m", retained_time=NOW)
        for node in range(100, 100 + RETAINED_MAX)
    )
    full = STABLE.model_copy(update={"retained": many})
    for replicas in ((0, 1, 2, 4), (1, 2, 4)):
        after = assignments.settle(full, moved(0, 0, 4, replicas=replicas))
        assert isinstance(after, Assignments)
        assert after.retained == many
        assert assignments.topology_of(after.stable) == ((4, 1, 2), A[1])


def test_the_time_of_what_is_kept_is_changed_by_its_migration() -> None:
    """A replica would stay for a time that was taken back, or another one go."""
    other = kept(9, None).model_copy(update={"migration": "other"})
    both = STABLE.model_copy(update={"retained": (kept(0, None), other)})
    after = assignments.retain_until(both, "m", NOW)
    assert after.retained == (kept(0, NOW), other)
    assert assignments.retain_until(STABLE, "m", NOW) == STABLE


# --- the first pseudo-code, line by line --------------------------------------------------------


@pytest.mark.proves("ZR-04")
def test_with_nothing_pending_another_topology_becomes_pending() -> None:
    """A trigger would not start a rebalance."""
    after = assignments.request(STABLE, B, 7)
    assert after == STABLE.model_copy(update={"pending": key(B, 7), "change": 7})


@pytest.mark.proves("ZR-04")
def test_the_very_first_topology_becomes_pending() -> None:
    """`empty(change)` and an empty stable: a new zone would never be placed."""
    after = assignments.request(Assignments(), A, 1)
    assert after == Assignments(pending=key(A, 1), change=1)


@pytest.mark.proves("ZR-04")
def test_while_a_rebalance_runs_another_topology_is_planned() -> None:
    """A running rebalance would be changed under way."""
    after = assignments.request(MOVING, C, 9)
    assert after == MOVING.model_copy(update={"planned": key(C, 9), "change": 9})


@pytest.mark.proves("ZR-17")
def test_requests_carry_the_trigger_that_is_carried_out_and_it_never_falls() -> None:
    """A second trigger would make data nodes refuse the copies of the first, which goes on."""
    done = assignments.complete(WAITING, 7, B)
    assert done is not SKIP
    _, intent = assignments.intend_cancel(done, 9, B, C)
    cleared = assignments.clear_pending(intent, 9)
    assert cleared is not SKIP
    steps = (STABLE, MOVING, WAITING, done, intent, cleared)
    assert [assignments.acting_revision(keys) for keys in steps] == [5, 7, 7, 9, 9, 9]


@pytest.mark.proves("ZR-04")
def test_a_newer_trigger_replaces_what_was_planned() -> None:
    """The zone would pass through a topology that nobody wants any more."""
    after = assignments.request(WAITING, A, 11)
    assert after == WAITING.model_copy(update={"planned": key(A, 11), "change": 11})


@pytest.mark.proves("ZR-04")
def test_asking_for_what_is_pending_takes_back_what_was_planned() -> None:
    """The zone would leave the wanted topology again; `change` stays, as in the seed."""
    after = assignments.request(WAITING, B, 11)
    assert after == WAITING.model_copy(update={"planned": None})


@pytest.mark.proves("ZR-04")
def test_asking_for_what_is_stable_plans_nothing_that_would_come_back_later() -> None:
    """A planned key without a pending one would undo the next rebalance."""
    after = assignments.request(STABLE, A, 7)
    assert after == STABLE.model_copy(update={"change": 7})
    assert isinstance(after, Assignments)
    later = assignments.request(after, B, 9)
    assert isinstance(later, Assignments)
    done = assignments.complete(later, 9, B)
    assert done == Assignments(stable=key(B, 9), change=9)


@pytest.mark.proves("ZR-04")
def test_the_order_of_nodes_is_part_of_a_topology() -> None:
    """A change of preferred leaders only would be taken for no change."""
    other_leader = ((1, 0, 2), (1, 2, 3))
    after = assignments.request(STABLE, other_leader, 7)
    assert isinstance(after, Assignments)
    assert after.pending == key(other_leader, 7)


@pytest.mark.proves("ZR-05")
@pytest.mark.parametrize("revision", [1, 8, 9])
def test_a_trigger_that_is_not_newer_is_skipped(revision: int) -> None:
    """A delayed trigger would overwrite a newer one."""
    assert assignments.request(WAITING, A, revision) is SKIP


@pytest.mark.parametrize("revision", [0, -1])
def test_a_trigger_needs_a_revision(revision: int) -> None:
    """0 is the empty `change`: every later trigger would pass for newer."""
    with pytest.raises(ValueError, match="at least 1"):
        assignments.request(Assignments(), A, revision)


# --- the second pseudo-code, line by line -------------------------------------------------------


@pytest.mark.proves("ZR-10")
def test_completion_makes_the_new_peers_stable_and_empties_pending() -> None:
    """The rebalance would start again, or its cancel would hit the next one."""
    cancel = CancelIntent(revision=7, old="0", new="1")
    after = assignments.complete(MOVING.model_copy(update={"cancel": cancel}), 7, B)
    assert after == Assignments(stable=key(B, 7), change=7)


@pytest.mark.proves("ZR-10")
def test_completion_moves_planned_up() -> None:
    """The trigger that came during the rebalance would be lost."""
    after = assignments.complete(WAITING, 7, B)
    assert after == Assignments(stable=key(B, 7), pending=key(C, 9), change=9)


@pytest.mark.proves("ZR-10", "ZR-13")
@pytest.mark.parametrize("keys", [STABLE, Assignments(), MOVING])
def test_completion_of_another_rebalance_changes_nothing(keys: Assignments) -> None:
    """A repeated completion would end the next rebalance unfinished."""
    assert assignments.complete(keys, 6, B) is SKIP


# --- cancel -------------------------------------------------------------------------------------


@pytest.mark.proves("ZR-19")
def test_the_cancel_intent_is_the_pair_of_topologies() -> None:
    """The replicas could not tell what they are to return to."""
    written, after = assignments.intend_cancel(MOVING, 7, A, B)
    assert written
    assert after.cancel == CancelIntent(revision=7, old="0,1,2;1,2,3", new="1,2,3;1,2,3")
    assert after.model_copy(update={"cancel": None}) == MOVING
    assert assignments.intend_cancel(after, 7, A, B) == (True, after)


@pytest.mark.proves("ZR-19")
@pytest.mark.parametrize("keys", [STABLE, WAITING])
def test_no_cancel_is_written_for_another_revision(keys: Assignments) -> None:
    """The wrong rebalance would be cancelled."""
    assert assignments.intend_cancel(keys, 6, A, B) == (False, keys)


@pytest.mark.proves("ZR-19")
def test_after_a_cancel_planned_moves_up_and_stable_stays() -> None:
    """A cancel would take the next trigger with it."""
    _, cancelling = assignments.intend_cancel(WAITING, 7, A, B)
    after = assignments.clear_pending(cancelling, 7)
    assert after == Assignments(stable=key(A, 5), pending=key(C, 9), change=9)
    _, cancelling = assignments.intend_cancel(MOVING, 7, A, B)
    assert assignments.clear_pending(cancelling, 7) == Assignments(stable=key(A, 5), change=7)


@pytest.mark.proves("ZR-20", "B-15")
def test_a_cancel_takes_over_what_is_as_pending_already() -> None:
    """The end of a cancel makes `stable` what the partitions are, in its one write.

    Otherwise a crash would leave `stable` with replicas that were stopped.
    """
    _, cancelling = assignments.intend_cancel(WAITING, 7, A, B)
    mixed = (B[0], A[1])
    after = assignments.clear_pending(cancelling, 7, mixed)
    assert after == Assignments(stable=key(mixed, 7), pending=key(C, 9), change=9)
    assert assignments.clear_pending(after, 7, mixed) is SKIP
    assert assignments.clear_pending(cancelling, 7, A) == Assignments(
        stable=key(A, 5), pending=key(C, 9), change=9
    ), "nothing has changed: the plans that were made on it stay good"


@pytest.mark.proves("ZR-19", "ZR-13")
def test_pending_is_not_cleared_without_the_intent_for_it() -> None:
    """A rebalance would vanish though nobody cancelled it."""
    assert assignments.clear_pending(MOVING, 7) is SKIP
    _, cancelling = assignments.intend_cancel(MOVING, 7, A, B)
    assert assignments.clear_pending(cancelling, 6) is SKIP
    assert assignments.clear_pending(STABLE, 5) is SKIP


def test_the_first_stable_topology_is_written_once() -> None:
    """A second placement of a zone would forget where its rows are."""
    placed = assignments.first(Assignments(), A, 3)
    assert placed == Assignments(stable=key(A, 3), change=3)
    assert assignments.first(placed, B, 4) is placed
    assert assignments.topology_of(placed.stable) == A
    assert assignments.topology_of(placed.pending) is None


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (Assignments(planned=key(A, 1), change=1), "without pending"),
        (Assignments(pending=key(A, 3), planned=key(B, 3), change=3), "not newer than pending"),
        (Assignments(stable=key(A, 3), pending=key(B, 2), change=3), "not newer than stable"),
        (Assignments(stable=key(A, 3), change=2), "change is older"),
        (Assignments(cancel=CancelIntent(revision=1, old="0", new="1")), "cancel is not for"),
    ],
)
def test_the_checker_sees_each_wrong_state(keys: Assignments, says: str) -> None:
    """The invariant of the stateful test would hold for anything."""
    assert any(says in found for found in assignments.violations(keys))


class AssignmentsMachine(RuleBasedStateMachine):
    """Triggers, completions and cancels in every order, with late and repeated calls."""

    @initialize()
    def start(self) -> None:
        """Begin with an empty zone."""
        self.keys = Assignments()
        self.revision = 0
        self.newest: Topology | None = None
        self.cancelled_newest = False

    def _take(self, after: Assignments | assignments.Skip) -> None:
        if isinstance(after, Assignments):
            assert after.change >= self.keys.change, "change fell"
            self.keys = after

    @rule(topology=st.sampled_from([A, B, C]))
    def trigger(self, topology: Topology) -> None:
        """Ask for a topology with a new revision."""
        self.revision += 1
        assert assignments.request(self.keys, topology, self.revision) is not SKIP
        self._take(assignments.request(self.keys, topology, self.revision))
        self.newest, self.cancelled_newest = topology, False

    @rule(topology=st.sampled_from([A, B, C]), back=st.integers(0, 3))
    def late_trigger(self, topology: Topology, back: int) -> None:
        """Send a trigger that is not newer than `change`: it changes nothing."""
        if self.keys.change - back > 0:
            assert assignments.request(self.keys, topology, self.keys.change - back) is SKIP

    @rule(off=st.integers(-1, 1))
    def complete(self, off: int) -> None:
        """Complete the pending rebalance, or another one in vain."""
        pending = self.keys.pending
        if pending is None:
            assert assignments.complete(self.keys, self.revision, A) is SKIP
            return
        peers = assignments.parse(pending.replicas)
        after = assignments.complete(self.keys, pending.revision + off, peers)
        assert (after is SKIP) == (off != 0)
        self._take(after)

    @rule(off=st.integers(-1, 1))
    def intend(self, off: int) -> None:
        """Ask to cancel the pending rebalance, or another one in vain."""
        pending = self.keys.pending
        revision = (0 if pending is None else pending.revision) + off
        written, after = assignments.intend_cancel(self.keys, revision, A, B)
        assert written == (pending is not None and off == 0)
        self._take(after)

    @rule()
    def clear(self) -> None:
        """End a cancel; it may take the newest trigger with it, and nothing else may."""
        pending = self.keys.pending
        if pending is not None:
            after = assignments.clear_pending(self.keys, pending.revision)
            assert (after is SKIP) == (self.keys.cancel is None)
            if after is not SKIP and self.keys.planned is None:
                self.cancelled_newest = True
            self._take(after)

    @rule(partition=st.integers(0, 2), new=st.integers(0, 9), old=st.integers(0, 4))
    def settle(self, partition: int, new: int, old: int) -> None:
        """Let a person move a leader; it counts as a trigger that is done at once."""
        before = assignments.topology_of(self.keys.stable)
        after = assignments.settle(self.keys, moved(partition, old, new))
        if after is SKIP:
            return
        self._take(after)
        made = assignments.topology_of(self.keys.stable)
        assert before is not None
        assert made is not None
        assert made[partition][0] == new
        assert len(made[partition]) == len(before[partition])
        assert [n for p, n in enumerate(made) if p != partition] == [
            n for p, n in enumerate(before) if p != partition
        ]
        self.revision, self.newest = max(self.revision, self.keys.change), made

    @invariant()
    def nothing_is_wrong(self) -> None:
        """Planned only with pending, revisions in order, cancel only for what is pending."""
        assert assignments.violations(self.keys) == ()

    @invariant()
    def the_newest_trigger_is_not_lost(self) -> None:
        """Look at the last of planned, pending, stable: the newest trigger asked for it."""
        if self.newest is not None and not self.cancelled_newest:
            keys = (self.keys.planned, self.keys.pending, self.keys.stable)
            last = next(one for one in keys if one is not None)
            assert last.replicas == assignments.compact(self.newest)


AssignmentsMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestAssignmentsMachine = pytest.mark.slow(
    pytest.mark.proves("ZR-04", "ZR-05", "ZR-10", "ZR-19")(AssignmentsMachine.TestCase)
)
