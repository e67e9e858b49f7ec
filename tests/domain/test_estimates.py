"""Rate and time left from samples of bytes done."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rezone.domain import estimates
from rezone.domain.estimates import Window, bytes_per_second, observe, seconds_left

START = datetime(2030, 1, 1, tzinfo=UTC)


def window(*samples: tuple[int, float]) -> Window:
    """Return the window after samples of (bytes, seconds)."""
    made = Window()
    for done, seconds in samples:
        made = observe(made, done, START + timedelta(seconds=seconds))
    return made


@pytest.mark.proves("B-10")
def test_rate_and_time_left_follow_from_the_samples() -> None:
    """The status would show a wrong time left."""
    made = window((0, 0), (1000, 10), (3000, 20))
    assert bytes_per_second(made) == 150
    assert seconds_left(made, 3301) == 3  # rounded up: never "0 left" before the end
    assert seconds_left(made, 3000) == 0
    assert seconds_left(made, 1) == 0


@pytest.mark.proves("B-14")
def test_nothing_moving_has_no_time_left() -> None:
    """A stuck copy would seem to end soon."""
    assert seconds_left(Window(), 100) is None
    assert bytes_per_second(Window()) == 0
    assert seconds_left(window((5, 0)), 100) is None
    assert seconds_left(window((5, 0), (5, 60)), 100) is None


@pytest.mark.proves("B-03")
def test_the_rate_follows_a_limit_that_is_changed() -> None:
    """The time left would average over an hour at another limit."""
    made = window(*((second * 100, second) for second in range(0, 600, 10)))
    assert bytes_per_second(made) == 100
    for step in range(1, 13):
        made = observe(made, 59_000 + step * 10, START + timedelta(seconds=590 + step * 10))
    assert bytes_per_second(made) == 1


def test_a_copy_that_begins_anew_has_a_new_history() -> None:
    """The rate would be negative."""
    made = window((5000, 0), (6000, 10), (100, 20), (300, 30))
    assert bytes_per_second(made) == 20


def test_rare_samples_still_give_a_rate() -> None:
    """A slow reporter would never have a time left."""
    assert bytes_per_second(window((0, 0), (500, 500))) == 1


def test_a_time_that_stands_still_replaces_the_sample() -> None:
    """Two reports of one moment would divide by zero."""
    assert bytes_per_second(window((0, 0), (10, 10), (30, 10))) == 3


def test_bytes_cannot_be_negative() -> None:
    """A broken report would make all later rates wrong."""
    with pytest.raises(ValueError, match="bytes_done is -1"):
        observe(Window(), -1, START)


@pytest.mark.proves("B-01")
def test_a_plan_s_time_is_estimated_before_it_runs() -> None:
    """The preview would have no time."""
    assert estimates.seconds_for(1001, 10, 100) == 101
    assert estimates.seconds_for(1000, 0, 100) == 10
    assert estimates.seconds_for(1000, 500, 100) == 10
    with pytest.raises(ValueError, match="rate_default"):
        estimates.seconds_for(1, 0, 0)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0, 1e6)), max_size=120))
def test_the_window_stays_small_and_in_order(samples: list[tuple[int, float]]) -> None:
    """A long copy would fill the memory, or a late report turn the rate around."""
    made = window(*samples)
    assert len(made.samples) <= estimates.SAMPLES_MAX
    for before, after in zip(made.samples, made.samples[1:], strict=False):
        assert before.at < after.at
        assert before.bytes_done <= after.bytes_done
    assert bytes_per_second(made) >= 0
