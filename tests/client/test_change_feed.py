"""Whom a change feed asks, where it stands, and what a token is worth."""

from __future__ import annotations

import pytest

from rezone.client import FeedTokenError
from rezone.client.feed.positions import FeedPositions, FollowedRange
from rezone.client.feed.token import RangePosition, decode_token, encode_token
from rezone.client.feed.trying import Tries
from rezone.client.routing.placement import Placement
from rezone.client.routing.routes import Leader
from rezone.client.settings import ClientSettings
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.errors import FeedTruncatedError, NotLeaderError, NotReadyError
from rezone.wire.layouts import Layout
from rezone.wire.messages import PartitionId, RangeChanges

OLD, NEW = Layout(0, 2), Layout(1, 3)
HALF = HASH_SPACE // 2
AT = [RangePosition(0, HALF, 10, 0), RangePosition(HALF, HASH_SPACE, 20, 1)]


class Replicas:
    """Two replicas of each partition, of which `l` leads, if any does."""

    led = True

    def leader(self, partition: PartitionId) -> Leader | None:
        """Return the leader."""
        del partition
        return Leader(0, "l", 1) if self.led else None

    def follower(self, partition: PartitionId, besides: set[str]) -> str | None:
        """Return the follower."""
        del partition
        return None if "f" in besides else "f"

    def correct(self, partition: PartitionId, error: NotLeaderError) -> Leader | None:
        """Take nothing over."""
        del partition, error
        return None


def test_a_range_is_asked_of_who_gave_its_position_until_that_has_ended() -> None:
    """A follower would leave a source before its last rows, or ask it for ever."""
    feed = FeedPositions.at(AT)
    both = Placement(OLD, NEW, frozenset({0, 1}))
    assert feed.assign(both) == []
    assert [each.partition for each in feed.ranges] == [0, 1]
    feed.took(feed.ranges[0], RangeChanges(time=15, own=True, ended=True))
    feed.assign(both)
    assert [each.partition for each in feed.ranges] == [*NEW.ids[:2], 1]
    assert [each.time for each in feed.ranges] == [15, 15, 20]
    # What is imported says nothing of the source's end: the rest is asked for where it is.
    feed.took(feed.ranges[0], RangeChanges(time=16, offset=7))
    feed.assign(both)
    assert [each.given_by for each in feed.ranges] == [0, 0, 1]
    feed.assign(Placement(NEW))
    assert [each.partition for each in feed.ranges] == [*NEW.ids[:2], *NEW.ids[1:]]


def test_neighbours_that_are_equally_far_are_one() -> None:
    """A token would grow with each re-sharding, for ever."""
    feed = FeedPositions.at([each._replace(time=5) for each in AT])
    feed.assign(Placement(Layout(1, 1)))
    assert len(feed.ranges) == 2
    for each in feed.ranges:
        feed.took(each, RangeChanges(time=30, offset=9, own=True))
    feed.assign(Placement(Layout(1, 1)))
    (found,) = feed.ranges
    assert (found.start, found.end, found.time) == (0, HASH_SPACE, 30)


def test_a_token_is_checked() -> None:
    """A follower would go on at a wrong place, or at another zone, without a word."""
    token = encode_token("u", AT)
    assert decode_token("u", token) == AT
    with pytest.raises(FeedTokenError, match="another zone"):
        decode_token("v", token)
    gap = [AT[1], AT[0]]
    for wrong in (encode_token("u", gap), token[:-4], token.lower(), "", "%%", "B" + token[1:]):
        with pytest.raises(FeedTokenError):
            decode_token("u", wrong)


def test_a_feed_is_truncated_when_all_replicas_say_so() -> None:
    """One log that begins with a copy would end a feed that others could serve."""
    tries = Tries(Replicas(), ClientSettings(), lambda: 0.0, from_followers=False)
    asked = FollowedRange(0, HASH_SPACE, 5, partition=0)
    assert tries.address(asked) == "l"
    tries.failed(asked, "l", FeedTruncatedError("too old"))
    assert tries.address(asked) == "f"
    tries.failed(asked, "f", FeedTruncatedError("too old"))
    with pytest.raises(FeedTruncatedError):
        tries.address(asked)


def test_a_range_without_an_answer_is_given_up_in_time() -> None:
    """A feed of a zone that is away would be silent for ever, or ask without a pause."""
    now = [0.0]
    tries = Tries(Replicas(), ClientSettings(), lambda: now[0], from_followers=True)
    asked = FollowedRange(0, HASH_SPACE, 5, partition=0)
    assert tries.address(asked) == "l"
    tries.succeeded(asked, "l", 5)
    assert tries.address(asked) == "f"
    tries.failed(asked, "f", NotReadyError("away"))
    assert tries.address(asked) is None
    assert 0 < tries.pause([asked]) < 1
    now[0] = 1.0
    assert tries.address(asked) == "l"
    now[0] = ClientSettings().timeout_seconds + 1
    with pytest.raises(NotReadyError, match="away"):
        tries.failed(asked, "l", NotReadyError("away"))


def test_leaders_hear_of_a_feed_from_followers_now_and_then() -> None:
    """They would not know that somebody follows, and a re-sharding would leave the feed behind."""
    now = [0.0]
    tries = Tries(Replicas(), ClientSettings(), lambda: now[0], from_followers=True)
    asked = FollowedRange(0, HASH_SPACE, 5, partition=0)
    assert tries.address(asked) == "l", "nobody there has heard of it"
    tries.succeeded(asked, "l", 5)
    assert tries.address(asked) == "f"
    tries.succeeded(asked, "f", 5)
    now[0] = 299.0
    assert tries.address(asked) == "f"
    now[0] = 300.0
    assert tries.address(asked) == "l"
    tries.failed(asked, "l", NotReadyError("away"))
    tries.succeeded(asked, "f", 5)
    assert tries.address(asked) == "f", "a leader that is away would hold it up again and again"


def test_a_consumer_that_takes_its_time_has_all_of_the_timeout() -> None:
    """One failed request after a pause would end a feed; a partition without a leader would not."""
    now, replicas = [0.0], Replicas()
    tries = Tries(replicas, ClientSettings(), lambda: now[0], from_followers=False)
    asked = FollowedRange(0, HASH_SPACE, 5, partition=0)
    assert tries.address(asked) == "l"
    now[0] = 100.0
    assert tries.address(asked) == "l"
    tries.failed(asked, "l", NotReadyError("away"))
    tries.succeeded(asked, "l", 5)
    replicas.led = False
    assert tries.address(asked) is None
    assert tries.lacks_routes
    now[0] = 200.0
    with pytest.raises(NotReadyError, match="no leader"):
        tries.address(asked)


def test_routes_are_asked_for_where_a_range_comes_no_further() -> None:
    """A leader that was replaced, and was not told, answers that there is nothing new for ever."""
    now = [0.0]
    tries = Tries(Replicas(), ClientSettings(), lambda: now[0], from_followers=False)
    asked = FollowedRange(0, HASH_SPACE, 5, partition=0)
    for time in (5, 6, 6):
        tries.succeeded(asked, "l", time)
        now[0] += 4.0
        assert not tries.lacks_routes, "its time goes on, or has not stood for long"
    tries.succeeded(asked, "l", 6)
    assert tries.lacks_routes
    tries.lacks_routes = False
    tries.succeeded(asked, "l", 6)
    assert not tries.lacks_routes, "not all the time"
