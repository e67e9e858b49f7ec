"""Copies of all zones on one Kubernetes node: how many, whose first, and that all end."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import NOW

from rezone.domain.model.world import Copy
from rezone.domain.observed.machine_limits import (
    Admission,
    Machines,
    Rank,
    Turn,
    Used,
    Wanted,
    admit,
)


def turn(rank: Rank = Rank.MOVE, seconds: float = 0, name: str = "a-1 of zone ns/a") -> Turn:
    """Return the turn of somebody who asked so many seconds after NOW."""
    return Turn(rank, NOW + timedelta(seconds=seconds), name)


def wanted(partition: int, *machines: str, started: bool = False) -> Wanted:
    """Return a copy that reads and writes on these machines."""
    copy = Copy(partition=partition, source=0, targets=(1,))
    return Wanted(copy, frozenset(machines), started)


def ask(
    *copies: Wanted,
    running: tuple[Used, ...] = (),
    waiting: dict[Turn, list[Machines]] | None = None,
    limit: int = 1,
    as_: Turn | None = None,
) -> Admission:
    """Ask for copies in the usual turn."""
    return admit(copies, as_ or turn(), running=running, waiting=waiting or {}, limit=limit)


def admitted(answer: Admission) -> list[int]:
    """Return the partitions that may begin."""
    return [each.copy.partition for each in answer.admitted]


@pytest.mark.proves("B-03")
def test_source_and_target_count_at_their_machines() -> None:
    """Copies of one zone take part at machines as sources and as targets.

    Two zones on the same machines would copy twice as much there as is allowed.
    """
    answer = ask(wanted(0, "m1", "m2"), wanted(1, "m2", "m3"), wanted(2, "m3", "m4"))
    assert admitted(answer) == [0, 2]
    assert "Kubernetes node m2" in answer.why[1]
    assert admitted(ask(wanted(0, "m1", "m2"), wanted(1, "m2", "m3"), limit=2)) == [0, 1]


@pytest.mark.proves("B-03", "B-14")
def test_another_zones_copies_count_and_are_named() -> None:
    """A task would wait without saying for whom, or two zones overrun a machine together."""
    used = Used("task b-7 of zone ns/b", frozenset({"m1"}))
    answer = ask(wanted(0, "m1", "m2"), wanted(1, "m3"), running=(used,))
    assert admitted(answer) == [1]
    assert "task b-7 of zone ns/b" in answer.why[0]


def test_what_runs_goes_on_whatever_the_limit() -> None:
    """A limit that is lowered would break off copies, or hide them from others."""
    used = Used("zone ns/b", frozenset({"m1"}))
    answer = ask(wanted(0, "m1"), wanted(1, "m1", started=True), running=(used,), limit=1)
    assert admitted(answer) == [1]


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (turn(Rank.REPAIR, 100, "repairs of zone ns/b"), True),
        (turn(Rank.MOVE, -1, "b-1 of zone ns/b"), True),
        (turn(Rank.MOVE, 1, "b-1 of zone ns/b"), False),
    ],
    ids=["repair", "older", "younger"],
)
def test_a_later_turn_takes_no_slot_that_an_earlier_one_waits_for(other: Turn, first: bool) -> None:
    """Repairs go before moves, then the oldest.

    A repair could wait for ever behind one zone's rebalance after the other's.
    """
    answer = ask(wanted(0, "m1"), waiting={other: [frozenset({"m1", "m2"})]})
    assert admitted(answer) == ([] if first else [0])
    if first:
        assert answer.why[0] == f"{other.name} goes first on Kubernetes node m1"


MACHINES = st.frozensets(st.sampled_from(["m1", "m2", "m3"]), min_size=1, max_size=3)


@pytest.mark.proves("B-03")
@given(
    st.lists(st.lists(MACHINES, min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 3)
)
def test_all_zones_come_to_an_end_and_no_machine_is_overrun(
    zones: list[list[Machines]], limit: int
) -> None:
    """Whatever zones want, no machine takes part in more copies than the limit, and all are done.

    Two zones could wait for each other for ever.
    """
    left = {n: list(enumerate(each)) for n, each in enumerate(zones)}
    turns = {n: turn(Rank(n % 2), -n, f"zone {n}") for n in left}
    running: dict[tuple[int, int], Machines] = {}
    waiting: dict[Turn, list[Machines]] = {}
    for _ in range(4 * sum(map(len, zones)) + 4):
        for n, wants in left.items():
            mine = [Wanted(Copy(partition=p, source=0, targets=(1,)), m) for p, m in wants]
            others = [Used(f"zone {z}", m) for (z, _), m in running.items()]
            rest = {t: w for t, w in waiting.items() if t != turns[n]}
            answer = admit(mine, turns[n], running=others, waiting=rest, limit=limit)
            waiting[turns[n]] = [each.machines for each in answer.refused]
            running |= {(n, each.copy.partition): each.machines for each in answer.admitted}
            left[n] = [(each.copy.partition, each.machines) for each in answer.refused]
            for machine in ("m1", "m2", "m3"):
                assert sum(machine in machines for machines in running.values()) <= limit
        if running:
            del running[min(running)]
    assert not any(left.values())
