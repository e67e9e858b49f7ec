"""Watches that tell nothing are noticed, and those that are slow or busy are let be."""

from __future__ import annotations

import pytest

from rezone.controller.process.watch_check import DeafWatchError, WatchCheck
from rezone.controller.work.keys import Kind, ObjectKey

ZONE = ObjectKey(Kind.ZONE, "ns", "orders")
TASK = ObjectKey(Kind.TASK, "ns", "orders-1")


@pytest.mark.proves("NW-06")
@pytest.mark.parametrize("told", [{}, {ZONE: "432"}])
def test_a_watch_that_tells_nothing_is_noticed_at_the_second_look(
    told: dict[ObjectKey, str],
) -> None:
    """The operator would hear of no change again, and nobody of that."""
    check = WatchCheck()
    check.look(told, {ZONE: "346"})
    with pytest.raises(DeafWatchError, match=r"1 objects .* ns/orders after version (none|432)"):
        check.look(told, {ZONE: "350"})


def test_what_is_under_way_at_each_look_is_no_deafness() -> None:
    """A busy zone would end the operator: one change is always between the API server and it."""
    check = WatchCheck()
    for number in range(5):
        check.look({ZONE: str(number)}, {ZONE: str(number + 1)})


def test_a_first_list_may_take_longer_than_two_looks() -> None:
    """An operator of many objects would end before it has heard of all, again and again."""
    check = WatchCheck()
    stored = {ZONE: "1", TASK: "2"}
    check.look({}, stored)
    check.look({ZONE: "1"}, stored)
    with pytest.raises(DeafWatchError, match="1 objects"):
        check.look({ZONE: "1"}, stored)


def test_an_object_that_is_gone_is_not_waited_for() -> None:
    """Its end may have been told before the look; there is nothing left to hear of."""
    check = WatchCheck()
    check.look({}, {ZONE: "1"})
    check.look({}, {})
    check.look({}, {ZONE: "1"})
