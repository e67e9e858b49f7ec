"""Storms with a named feed: its log stays until it has acknowledged it, wherever it is by then.

`NamedFeedCopies` is the storm of `following_copies`, whose coordinator takes no replica away while
one that stays still brings older log. What must hold: no replica that is in sync and does not bring
log refuses the follower for what was trimmed; and at the end each replica's log goes back to what
was acknowledged.

`NamedFeedCutOver` is that of `following`, whose follower rests over the whole cut-over and then
asks the new partitions alone. What must hold is the same: all changes since the token come.
"""

from __future__ import annotations

import random

import msgspec

from rezone.client.feed.positions import FollowedRange
from rezone.client.routing.placement import Placement
from rezone.wire.errors import FeedTruncatedError, error_from
from rezone.wire.messages import NOBODY_GAVE, FeedLimits, NodeId, RangeChanges, ZoneConfig
from simulation.clients.following import Followed, Follower
from simulation.clients.following_copies import CopyFollower, FollowedCopies
from simulation.storms.copy_storm import PARTITION
from simulation.storms.data_plane import DataPlane

FEED = "named"
PULL_CHANCE = 0.3
ACKNOWLEDGES_CHANCE = 0.05
FEEDS = (FeedLimits(FEED, 1 << 40, 1_000_000),)
"""No limit is ever reached: then all that is not acknowledged must be there."""


def pull_logs(run: DataPlane, rng: random.Random) -> None:
    """Let some of the nodes do what their threads that bring older log would."""
    for node in list(run.network.nodes):
        if node in run.network.nodes and rng.random() < PULL_CHANCE:
            with run.mortals():
                run.lines[node].pull_log()


class NamedFollower(CopyFollower):
    """A follower of copies that is never left behind."""

    def __init__(self, run: NamedFeedCopies) -> None:
        super().__init__(run)
        self._named = run
        self._old_rows = False  # versions are kept for another time
        self._asked: NodeId = -1

    def ask(self, node: NodeId) -> None:
        """Ask a node for the next changes."""
        self._asked = node
        super().ask(node)

    def _took(self, answer: RangeChanges) -> None:
        if answer.error is not None:
            error = error_from(answer.error)
            if isinstance(error, FeedTruncatedError):
                self._named.refused(self._asked, error)
                return
        super()._took(answer)


class NamedFeedCopies(FollowedCopies):
    """One run, from its seed."""

    told_time = 0

    def __init__(self, seed: int) -> None:
        self.feeds = random.Random(f"named feed {seed}")
        super().__init__(seed)
        self.follower = NamedFollower(self)
        self.follower.begin()

    def zone_of(self, config: ZoneConfig) -> ZoneConfig:
        """Return a configuration with a feed that nobody limits."""
        return msgspec.structs.replace(config, feeds=FEEDS)

    def may_leave(self, node: NodeId) -> bool:
        """Whether all others that are in sync have what the feed needs."""
        others = [other for other in self.records[PARTITION].isr if other != node]
        here = {replica.node_id: replica for replica in self.replicas()}
        return all(other in here and not here[other].pulls_log for other in others)

    def step(self) -> None:
        """Let a moment pass, bring older log, and acknowledge now and then."""
        super().step()
        pull_logs(self, self.feeds)
        if self.follower is not None and self.feeds.random() < ACKNOWLEDGES_CHANCE:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Tell some of the replicas what the follower has stored."""
        assert isinstance(self.follower, NamedFollower)
        self.told_time = max(self.told_time, self.follower.stored_time)
        for replica in self.replicas():
            if self.told_time and self.feeds.random() < 0.5:
                replica.acknowledged.note(FEED, self.told_time)
                self.counts["acknowledged"] += 1

    def refused(self, node: NodeId, error: FeedTruncatedError) -> None:
        """Check that a replica that refuses has yet to bring its log."""
        (replica,) = [each for each in self.replicas() if each.node_id == node]
        whole = node in self.records[PARTITION].isr and not replica.pulls_log
        assert not whole, f"node {node} has trimmed what was not acknowledged: {error}"
        self.counts["feed refused by a copy"] += 1

    def settle(self) -> None:
        """Wait until all have brought their log; it goes back far enough."""
        super().settle()
        self.wait_for(
            lambda: not any(replica.pulls_log for replica in self.replicas()),
            lambda: [replica.store.log_start for replica in self.replicas()],
        )
        for replica in self.replicas():
            replica.store.offset_after(self.told_time)  # SnapshotExpiredError if it does not


class RestedFollower(Follower):
    """One that rests from some moment on, until the new partitions serve."""

    def __init__(self, run: NamedFeedCutOver, rng: random.Random) -> None:
        super().__init__(run, rng)
        self._rested = run
        self._rests_from = rng.uniform(0, 2 * run.reshards_at)

    def step(self) -> None:
        """Follow, unless it rests."""
        over = self._rested.sealed == set(self._rested.old.ids)
        if over or self._rested.loop.time() < self._rests_from:
            super().step()

    def _placement(self) -> Placement:
        run = self._rested
        if run.sealed == set(run.old.ids):
            return Placement(run.new)
        return super()._placement()

    def _truncated(self, asked: FollowedRange) -> None:
        # A time without a word of whose it is may be of several sources, at one that has these.
        assert asked.given_by == NOBODY_GAVE, "a named feed was left behind"
        super()._truncated(asked)


class NamedFeedCutOver(Followed):
    """One run, from its seed."""

    def __init__(self, seed: int) -> None:
        self.feeds = random.Random(f"named feed {seed}")
        super().__init__(seed)
        self.follower = RestedFollower(self, random.Random(f"rested {seed}"))

    def zone_of(self, config: ZoneConfig) -> ZoneConfig:
        """Return a configuration with a feed that nobody limits."""
        return msgspec.structs.replace(config, feeds=FEEDS)

    def step(self) -> None:
        """Let a moment pass, and bring older log."""
        super().step()
        pull_logs(self, self.feeds)
