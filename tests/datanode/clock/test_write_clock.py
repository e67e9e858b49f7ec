"""The floor under a replica's commit times: it rises, and what was promised stays below it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.datanode.clock.write_clock import WriteClock, latest_promise

TIMES = st.integers(min_value=0, max_value=1 << 53)
INFINITE = float("inf")


@pytest.mark.proves("ZR-08")
@given(bounds=st.lists(TIMES, max_size=3), raises=st.lists(TIMES))
def test_the_floor_never_falls(bounds: list[int], raises: list[int]) -> None:
    """A row would get a time that somebody has read at already."""
    clock = WriteClock(*bounds)
    seen = [0, *bounds]
    for time in raises:
        clock.raise_to(time)
        seen.append(time)
        assert clock.floor == max(seen)


def test_the_floor_cannot_be_assigned() -> None:
    """A module that forgets to compare could lower it."""
    clock = WriteClock(5)
    with pytest.raises(AttributeError):
        clock.floor = 3  # type: ignore[misc]
    assert clock.floor == 5


@pytest.mark.proves("ZR-08")
@given(floor=TIMES, now=TIMES, last=TIMES)
def test_a_write_is_later_than_all_that_was_read(floor: int, now: int, last: int) -> None:
    """A read as of a time would change afterwards, or two rows would have one time."""
    time = WriteClock(floor).next_time(now, last)
    assert time >= now
    assert time > last
    assert time > floor
    assert time in {now, last + 1, floor + 1}, "no later than it must be"


@pytest.mark.proves("ZR-08")
@given(floor=TIMES, now=TIMES, told=TIMES | st.just(INFINITE))
def test_no_write_gets_a_promised_time(floor: int, now: int, told: float) -> None:
    """A closed timestamp would not be closed."""
    clock = WriteClock(floor)
    time = latest_promise(now, told)
    clock.raise_to(time)
    assert time == min(now - 1, told)
    assert clock.floor == max(floor, time)
    assert clock.next_time(now, last_commit_time=0) > time


@given(told=TIMES | st.just(INFINITE))
def test_who_does_not_know_the_time_promises_nothing(told: float) -> None:
    """A wrong clock would bind all leaders that come later."""
    assert latest_promise(None, told) == 0


@pytest.mark.proves("ZR-08")
@pytest.mark.parametrize(("now", "told", "latest"), [(10, INFINITE, 9), (10, 7, 7), (7, 10, 6)])
def test_a_time_is_promised_that_is_over_and_was_told(now: int, told: float, latest: int) -> None:
    """A later leader, or the next write of this one, would give a row a time that was read at."""
    assert latest_promise(now, told) == latest
