"""The floor under a replica's commit times: it rises, and what was promised stays below it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.datanode.clock.write_clock import WriteClock

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
    time = clock.promise_latest(now, told)
    assert time == min(now - 1, told)
    assert clock.floor == max(floor, time)
    assert clock.next_time(now, last_commit_time=0) > time


@given(floor=TIMES, told=TIMES | st.just(INFINITE), wanted=TIMES)
def test_who_does_not_know_the_time_promises_nothing(floor: int, told: float, wanted: int) -> None:
    """A wrong clock would bind all leaders that come later."""
    clock = WriteClock(floor)
    assert clock.promise_latest(None, told) == 0
    assert not clock.promise(wanted, None, told)
    assert clock.floor == floor


@pytest.mark.proves("ZR-08")
@pytest.mark.parametrize(
    ("wanted", "now", "told", "may"),
    [
        (9, 10, INFINITE, True),
        (10, 10, INFINITE, False),
        (7, 10, 7, True),
        (8, 10, 7, False),
    ],
)
def test_a_time_is_promised_that_is_over_and_was_told(
    wanted: int, now: int, told: float, may: bool
) -> None:
    """A later leader, or the next write of this one, would give a row a time that was read at."""
    clock = WriteClock(3)
    assert clock.promise(wanted, now, told) is may
    assert clock.floor == (wanted if may else 3), "a refused time binds nobody"


@given(wanted=TIMES, now=TIMES, told=TIMES | st.just(INFINITE))
def test_one_time_may_be_promised_when_the_latest_is_no_earlier(
    wanted: int, now: int, told: float
) -> None:
    """ClosedTimestamp and reads would go by two rules."""
    latest = WriteClock().promise_latest(now, told)
    assert WriteClock().promise(wanted, now, told) is (wanted <= latest)
