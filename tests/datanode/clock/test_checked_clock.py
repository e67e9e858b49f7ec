"""A node's time: by its monotonic clock, when a majority agrees with it; machines by hand."""

from __future__ import annotations

import functools

import pytest

from rezone.datanode.clock.checked_clock import (
    FIRST_SECONDS,
    HEARD_SECONDS,
    SETTLED_SECONDS,
    TROUBLE_SECONDS,
    WELL_SECONDS,
    CheckedClock,
    Exchange,
)
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import NodeClock

SECOND = 1_000_000
MONTH = 30 * 86_400 * SECOND
BEGUN = 1_700_000_000 * SECOND
OFFSET_MS = 500


class Machine:
    """A machine: its monotonic clock is everybody's, its time of day is wrong by `error`."""

    seconds = 0.0

    def __init__(self, boot: float, error: int = 0) -> None:
        self.boot = boot
        self.error = error

    def monotonic(self) -> float:
        """Return seconds since some moment of its own."""
        return Machine.seconds + self.boot

    def micros(self) -> int:
        """Return the time of day."""
        return true_time() + self.error


def true_time() -> int:
    """Return what time it is."""
    return BEGUN + round(Machine.seconds * SECOND)


class Zone:
    """Nodes that tell each other their times."""

    def __init__(self, *errors: int) -> None:
        Machine.seconds = 0.0
        self.machines = [Machine(1000.0 * n, error) for n, error in enumerate(errors)]
        self.clocks = [CheckedClock(machine, OFFSET_MS) for machine in self.machines]

    def begin(self, node: int) -> CheckedClock:
        """Begin another process of a node."""
        known = self.clocks[node].shares_with
        self.clocks[node] = CheckedClock(self.machines[node], OFFSET_MS)
        self.clocks[node].shares_with = known
        return self.clocks[node]

    def share(self) -> None:
        """Have replicas of all partitions on all nodes: each knows of all others."""
        for one, clock in enumerate(self.clocks):
            others = [other for other in range(len(self.clocks)) if other != one]
            clock.shares_with = functools.partial(list, others)

    def talk(self, *nodes: int, way: float = 0.001, back: float = 0.001) -> None:
        """Let each two of the nodes, or of all, exchange two rounds, of so many seconds."""
        who = nodes or range(len(self.clocks))
        for one in who:
            for other in who:
                if one < other:
                    self._exchange(one, other, way, back)

    def _exchange(self, one: int, other: int, way: float, back: float) -> None:
        asks, grants = (Exchange(self.clocks[a], b) for a, b in ((one, other), (other, one)))
        for _ in range(2):
            asked = asks.say()
            Machine.seconds += way
            grants.heard(asked)
            granted = grants.say()
            Machine.seconds += back
            asks.heard(granted)

    def pass_(self, seconds: float, *nodes: int) -> None:
        """Let time pass, in which these nodes, or all, tell each other their times."""
        until = Machine.seconds + seconds
        while Machine.seconds < until:
            Machine.seconds += 0.5
            self.talk(*nodes)
            for clock in self.clocks:
                clock.look(clock.monotonic())

    def errors(self) -> list[int]:
        """Return by how much the times of the nodes are wrong."""
        return [clock.micros() - true_time() for clock in self.clocks]

    def gives(self) -> list[bool]:
        """Return which nodes give times."""
        return [clock.gives for clock in self.clocks]


def near(*errors: int) -> bool:
    """Whether times are nearly right."""
    return all(abs(error) < SECOND / 2 for error in errors)


def test_a_node_gives_no_times_before_another_one_agrees() -> None:
    """One that begins with its clock a month ahead would drive the zone's times there."""
    zone = Zone(0, 0, MONTH)
    assert zone.gives() == [False] * 3
    with pytest.raises(NotReadyError, match="no other node has been heard"):
        zone.clocks[0].require()
    zone.talk(0, 1)
    assert zone.gives() == [True, True, False]
    zone.talk()
    assert zone.gives() == [True, True, False]
    with pytest.raises(NotReadyError, match="majority"):
        zone.clocks[2].require()


def test_who_needs_nobody_gives_times_at_once() -> None:
    """A zone of one node would take no write."""
    zone = Zone(0)
    zone.clocks[0].alone = lambda: True
    zone.clocks[0].look(zone.clocks[0].monotonic())
    assert zone.gives() == [True]


@pytest.mark.proves("NW-05")
def test_two_that_hear_each_other_first_do_not_outvote_those_that_start_later() -> None:
    """Two nodes that were wrong alike counted as agreed: all others gave no times, for good."""
    zone = Zone(MONTH, MONTH, 0, 0, 0)
    zone.share()
    zone.pass_(FIRST_SECONDS - 1, 0, 1)
    assert not any(zone.gives())
    with pytest.raises(NotReadyError, match="too few others agree"):
        zone.clocks[0].require()
    zone.talk()
    assert zone.gives() == [False, False, True, True, True]
    assert near(*zone.errors()[2:])
    zone.pass_(TROUBLE_SECONDS + 1)
    assert [clock.trouble.off for clock in zone.clocks] == [True, True, False, False, False]


def test_half_of_the_nodes_are_no_majority() -> None:
    """Of two pairs with different times the one that is heard first would win."""
    zone = Zone(MONTH, MONTH, 0, 0)
    zone.share()
    zone.talk(0, 1)
    zone.talk(2, 3)
    zone.pass_(2 * FIRST_SECONDS)
    assert not any(zone.gives())
    zone.machines[0].error = 0
    zone.pass_(1)
    assert zone.gives() == [True, False, True, True]


@pytest.mark.proves("NW-05")
def test_a_zone_with_dead_nodes_starts_after_a_while() -> None:
    """Of five nodes three are gone: the two that are left would wait for them for ever."""
    zone = Zone(0, 0, 0, 0, 0)
    zone.share()
    zone.pass_(FIRST_SECONDS - 1, 0, 1)
    assert not any(zone.gives())
    zone.pass_(2, 0, 1)
    assert zone.gives() == [True, True, False, False, False]
    Machine.seconds += HEARD_SECONDS + 1
    zone.clocks[0].look(zone.clocks[0].monotonic())
    assert zone.clocks[0].gives, "it goes on when it hears nobody"


def test_who_did_not_wait_for_a_majority_is_outvoted_when_there_is_one() -> None:
    """Two that were wrong alike, and alone for long, would keep the time from all others."""
    zone = Zone(MONTH, MONTH, 0, 0, 0)
    zone.share()
    zone.pass_(FIRST_SECONDS + 1, 0, 1)
    assert zone.gives()[:2] == [True, True]
    zone.talk()
    zone.talk()
    assert zone.gives() == [False, False, True, True, True]


def test_who_was_alone_does_not_stop_when_it_is_not_alone_any_more() -> None:
    """A leader would refuse writes for seconds because a first follower has caught up."""
    zone = Zone(0, 0, 0, 0, 0)
    zone.share()
    alone = zone.clocks[0]
    alone.alone = lambda: True
    alone.look(alone.monotonic())
    assert alone.gives
    zone.talk(0, 1)
    alone.alone = lambda: False
    zone.talk(0, 1)
    assert zone.gives() == [True, False, False, False, False]


@pytest.mark.parametrize("set_nodes", [1, 3, 5])
@pytest.mark.parametrize("error", [-MONTH, 2 * SECOND, MONTH])
@pytest.mark.proves("NW-05")
def test_clocks_that_are_set_while_nodes_run_count_for_nothing(set_nodes: int, error: int) -> None:
    """Three of five nodes, a month ahead for eight seconds, left the zone's time there for good."""
    zone = Zone(0, 0, 0, 0, 0)
    zone.talk()
    for machine in zone.machines[:set_nodes]:
        machine.error = error
    zone.pass_(8)
    assert near(*zone.errors())
    assert all(zone.gives())
    told = [clock.trouble for clock in zone.clocks]
    assert [bool(each.text) for each in told] == [n < set_nodes for n in range(5)]
    assert not any(each.off for each in told), "it can lead"
    for machine in zone.machines:
        machine.error = 0
    zone.pass_(WELL_SECONDS + 1)
    assert near(*zone.errors())
    assert not any(clock.trouble.text for clock in zone.clocks)


def test_nodes_that_have_just_begun_have_no_say_beside_one_that_runs() -> None:
    """Two that were restarted with wrong clocks would outvote the one that knows the time."""
    zone = Zone(0, 0, 0)
    zone.talk()
    for node in (1, 2):
        zone.machines[node].error = MONTH
        zone.begin(node)
    zone.talk()
    assert zone.gives() == [True, False, False]
    assert near(zone.errors()[0])
    zone.pass_(TROUBLE_SECONDS + 1)
    assert [clock.trouble.off for clock in zone.clocks] == [False, True, True]
    assert "2592000.0 s ahead of" in zone.clocks[1].trouble.text
    assert zone.clocks[1].offset_micros == pytest.approx(MONTH, abs=SECOND)
    for machine in zone.machines:
        machine.error = 0
    zone.pass_(1)
    assert zone.gives() == [True] * 3
    assert near(*zone.errors())


def test_a_cluster_that_was_suspended_takes_the_time_of_day_that_all_have() -> None:
    """Its times would be late for good: monotonic clocks stand still meanwhile."""
    zone = Zone(0, 0, 0)
    zone.talk()
    for machine in zone.machines:
        machine.error = 3_600 * SECOND
    zone.pass_(SETTLED_SECONDS - 10)
    assert near(*zone.errors())
    zone.pass_(20)
    assert near(*(error - 3_600 * SECOND for error in zone.errors()))
    assert all(zone.gives())


def test_a_minority_is_never_followed_however_long_it_lasts() -> None:
    """One machine without NTP would take the others with it."""
    zone = Zone(0, 0, 0)
    zone.talk()
    zone.machines[0].error = MONTH
    zone.pass_(2 * SETTLED_SECONDS)
    assert near(*zone.errors())


def test_a_clock_that_is_set_to_what_the_others_have_is_followed_at_once() -> None:
    """A machine that was suspended alone would give no times though its clock is right again."""
    zone = Zone(0, 0, 0)
    zone.talk()
    zone.machines[0].boot -= 60  # its monotonic clock stood still, and its clock did
    zone.machines[0].error = -60 * SECOND
    zone.pass_(1)
    assert zone.gives() == [False, True, True]
    zone.machines[0].error = 0
    zone.pass_(1)
    assert zone.gives() == [True] * 3
    assert near(*zone.errors())


def test_a_slow_network_makes_no_clock_wrong() -> None:
    """Nodes would stop to lead because of packets that are late."""
    zone = Zone(0, 0, 0)
    zone.talk(way=0.001, back=4.0)
    assert zone.gives() == [True] * 3


def test_small_corrections_of_a_clock_are_followed() -> None:
    """Monotonic clocks drift: times would be seconds off after weeks."""
    zone = Zone(0, 0, 0)
    zone.talk()
    for _ in range(4):
        for machine in zone.machines:
            machine.error += 400_000
        zone.pass_(1)
    assert near(*(error - 1_600_000 for error in zone.errors()))


def test_what_a_node_said_long_ago_does_not_count() -> None:
    """A node that is gone for good would have a vote for ever."""
    zone = Zone(0, 0)
    zone.talk()
    Machine.seconds += HEARD_SECONDS + 1
    zone.clocks[0].look(zone.clocks[0].monotonic())
    assert zone.clocks[0].gives, "it knows the time, and nobody says otherwise"
    assert not zone.clocks[0]._peers


def test_no_time_of_others_is_taken_that_is_too_far_ahead() -> None:
    """A leader of a version that does not compare clocks would drive this node's bound ahead."""
    zone = Zone(0, 0)
    zone.clocks[0].require_near(true_time() + MONTH)  # it cannot know
    zone.talk()
    zone.clocks[0].require_near(true_time() + SECOND // 2)
    with pytest.raises(NotReadyError, match="ahead"):
        zone.clocks[0].require_near(true_time() + MONTH)


def test_the_latest_time_is_kept_when_the_clock_goes_back() -> None:
    """Versions that were collected by then would be read as if they were there."""
    zone = Zone(0, 0)
    zone.talk()
    clock = zone.clocks[0]
    for machine in zone.machines:
        machine.error = -400_000
    before = clock.micros()
    zone.talk()
    assert clock.micros() < before <= clock.highest
    clock.begin_above(true_time() + MONTH)
    assert clock.highest >= true_time() + MONTH


def test_a_node_that_is_held_back_knows_the_time_and_gives_none() -> None:
    """One that has lost what it told would give times below that before it has found out."""
    zone = Zone(0, 0)
    clock = zone.clocks[0]
    clock.hold_back()
    zone.talk()
    assert clock.knows
    assert zone.gives() == [False, True]
    with pytest.raises(NotReadyError, match="what it has told before"):
        clock.require()
    clock.release()
    assert zone.gives() == [True, True]


def test_who_answers_nothing_is_not_compared() -> None:
    """Of a frame that was long under way nobody knows when it was sent."""
    zone = Zone(0, 0)
    zone.clocks[0].heard(1, NodeClock(time=0, wall=0, agreed=True, stamp=5))
    assert not zone.clocks[0]._peers
