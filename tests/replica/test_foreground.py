"""Copies give way to clients: how long a copy rests, and that it always gets on."""

from collections.abc import Iterator

import pytest

from rezone.replica.foreground import (
    FOLLOWED_SECONDS,
    OWED_SECONDS_MAX,
    PAUSE_SECONDS,
    REST_SECONDS_MAX,
    SHORT_STEP_BYTES,
    CopySteps,
    Foreground,
)


class Time:
    """A clock that only waiting moves; `at` maps moments to what happens then."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[tuple[float, object]] = []

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def micros(self) -> int:
        """Return the time."""
        return int(self.now * 1e6)

    def wait(self, seconds: float) -> bool:
        """Let time pass."""
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()  # type: ignore[operator]
        return False


def rested(foreground: Foreground, time: Time, worked: float) -> float:
    """Return how long a copy rests after a step."""
    before = time.now
    foreground.give_way(worked)
    return time.now - before


def test_a_copy_takes_its_share_while_clients_are_served() -> None:
    """Copies would take half of each core and more from whoever is served."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    foreground.begin()
    assert rested(foreground, time, 0.003) == pytest.approx(0.012)
    assert rested(foreground, time, 0.001) == pytest.approx(0.004)
    assert foreground.rested_seconds == pytest.approx(0.016)


def test_without_clients_a_copy_goes_on_at_once() -> None:
    """Each copy would take five times as long, though nobody gains by it."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    assert rested(foreground, time, 1.0) == 0.0
    foreground.begin()
    foreground.end()
    time.now += 2 * PAUSE_SECONDS
    assert rested(foreground, time, 1.0) == 0.0


def test_a_pause_of_the_clients_ends_the_rest() -> None:
    """A copy would rest on after the last client has gone."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    foreground.begin()
    time.events = [(time.now + 0.01, foreground.end)]
    assert 0.010 <= rested(foreground, time, 0.01) <= 0.010 + 4 * PAUSE_SECONDS


def test_one_client_that_asks_again_at_once_makes_no_pause() -> None:
    """The moment between an answer and the next request would let a whole step in."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    for _ in range(3):
        foreground.begin()
        foreground.end()
        time.now += PAUSE_SECONDS / 2
        assert rested(foreground, time, 0.0001) == pytest.approx(0.0004)


@pytest.mark.proves("B-16")
def test_a_copy_always_gets_on() -> None:
    """Under steady load a copy would never end, or be taken for dead after a long step."""
    time = Time()
    foreground = Foreground(time, lambda: 95, wait=time.wait)
    foreground.begin()
    assert rested(foreground, time, 1000.0) == pytest.approx(REST_SECONDS_MAX)


def test_copies_share_what_clients_leave() -> None:
    """Eight copies at once would take eight shares."""
    time = Time()
    foreground = Foreground(time, lambda: 50, wait=time.wait)
    foreground.begin()
    begun = time.now
    time.events = [(begun + 0.004, lambda: foreground.give_way(0.010))]
    foreground.give_way(0.010)
    assert time.now - begun == pytest.approx(0.020)


def test_nought_turns_it_off() -> None:
    """The setting could not be compared with its absence."""
    time = Time()
    foreground = Foreground(time, lambda: 0, wait=time.wait)
    foreground.begin()
    assert rested(foreground, time, 1.0) == 0.0


def test_a_node_that_stops_lets_copies_go() -> None:
    """A stopping node would wait for the rests of its copies."""
    time = Time()
    foreground = Foreground(time, lambda: 80)
    foreground.begin()
    foreground.close()
    foreground.give_way(1.0)
    assert time.now == 100.0


def test_a_stream_counts_as_a_request_while_an_item_is_made() -> None:
    """A scan that nobody reads on would slow copies for ever."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    rests: list[float] = []

    def items() -> Iterator[int]:
        rests.append(rested(foreground, time, 0.001))
        yield 1

    served = foreground.serving(items())
    assert next(served) == 1
    time.now += 2 * PAUSE_SECONDS
    rests.append(rested(foreground, time, 0.001))
    assert list(served) == []
    assert rests == [pytest.approx(0.004), 0.0]


def test_rows_of_a_leader_elsewhere_count_until_they_are_durable() -> None:
    """A follower would do its copies and builds at full speed, and the leader's clients wait."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    foreground.followed()
    time.now += FOLLOWED_SECONDS
    assert rested(foreground, time, 0.0001) == pytest.approx(0.0004)
    foreground.followed()
    foreground.begin()
    foreground.end()
    time.now += FOLLOWED_SECONDS
    assert rested(foreground, time, 0.0001) > 0, "an answer to another client ends nothing"
    time.now += FOLLOWED_SECONDS + PAUSE_SECONDS
    assert rested(foreground, time, 1.0) == 0.0


def test_steps_are_told_apart_by_processor_time() -> None:
    """The rest would be slept off again after the next step."""
    time = Time()
    foreground = Foreground(time, lambda: 50, wait=time.wait)
    foreground.begin()
    readings = iter([1.0, 1.010, 1.010, 1.013, 1.013])
    steps = CopySteps(foreground, 2.0, worked=lambda: next(readings))
    steps.rest()
    assert time.now == pytest.approx(100.020)
    steps.rest()
    assert time.now == pytest.approx(100.026)


def test_steps_are_short_while_clients_are_served_only() -> None:
    """A request that meets a step would wait for megabytes; or copies at night would be slow."""
    time, percent = Time(), 80
    foreground = Foreground(time, lambda: percent, wait=time.wait)
    steps = CopySteps(foreground)
    assert steps.step_bytes(2 << 20) == 2 << 20
    foreground.begin()
    assert steps.step_bytes(2 << 20) == SHORT_STEP_BYTES
    assert steps.step_bytes(100) == 100
    foreground.end()
    assert steps.step_bytes(2 << 20) == SHORT_STEP_BYTES, "the next request is on its way"
    time.now += 2 * PAUSE_SECONDS
    assert steps.step_bytes(2 << 20) == 2 << 20
    foreground.begin()
    percent = 0
    assert steps.step_bytes(2 << 20) == 2 << 20


@pytest.mark.proves("B-16")
def test_what_cannot_rest_is_rested_for_by_others_within_limits() -> None:
    """A replica that is filled would cost clients all, or keep copies from ending."""
    time = Time()
    foreground = Foreground(time, lambda: 50, wait=time.wait)
    foreground.owe(0.5)
    assert foreground.owed_seconds == 0.0, "nobody is served"
    foreground.begin()
    foreground.owe(0.1)
    assert foreground.owed_seconds == pytest.approx(0.1)
    assert rested(foreground, time, 0.01) == pytest.approx(0.11)
    foreground.owe(1_000.0)
    foreground.owe(1_000.0)
    assert foreground.owed_seconds == pytest.approx(OWED_SECONDS_MAX)
    foreground.end()
    time.now += 2 * PAUSE_SECONDS
    assert foreground.owed_seconds == 0.0
    assert rested(foreground, time, 0.01) == 0.0
