"""How long a replica knows from where on somebody follows its changes."""

from __future__ import annotations

from rezone.datanode.state.followed import FollowedFrom


def test_the_earliest_time_is_known_for_a_pause_and_at_most_twice_as_long() -> None:
    """A re-sharding would leave those behind who pause, or pull a log that nobody needs."""
    now = 0.0
    followed = FollowedFrom(lambda: now, 10.0)
    assert followed.time is None
    followed.note(7)
    followed.note(5)
    followed.note(9)
    assert followed.time == 5
    now = 9.0
    followed.note(20)
    now = 10.0
    followed.note(30)
    assert followed.time == 5, "who asked at 9 would be forgotten after a second"
    now = 19.9
    assert followed.time == 5
    now = 20.0
    assert followed.time == 30
    now = 100.0
    assert followed.time is None


def test_without_a_pause_nothing_is_known() -> None:
    """An operator who wants no log to be brought along would have to guess a number."""
    followed = FollowedFrom(lambda: 1.0, 0.0)
    followed.note(5)
    assert followed.time is None
