"""A cut-over whose changes somebody follows: the feed's own requests, to whichever replica.

The cut-over is `cut_over`'s, with its failovers, late appliers, torn disks and wrong clocks. A
follower asks replicas at random, those that lag and those that led before too; requests and answers
are lost; it dies now and then, and goes on from an older token, of which it has stored nothing but
the text. It goes on at the next layout with or without the partitions of the old one.

What must hold: for each row the changes that come behind a token are those that the partitions end
with, once each and in the order of their commits, each with the row as it was before; so none that
was undone; and none comes with a time up to which all were said to be known.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from typing import NamedTuple

from rezone.client.feed.positions import FeedPositions, FollowedRange
from rezone.client.feed.token import RangePosition, decode_token, encode_token
from rezone.client.routing.placement import Placement
from rezone.datanode.replica.replica import Replica
from rezone.storage.engines.base import FLAG_INTENT, FLAG_VALUE, time_of
from rezone.wire.codec.changes import OPERATION_UPSERT, changes_from
from rezone.wire.errors import FeedTruncatedError, error_from
from rezone.wire.messages import NOBODY_GAVE, FollowChanges, NodeId, RangeChanges
from simulation.nodes.disk import MachineDiedError
from simulation.storms.cut_over import CutOver

UID = "u"
FOLLOW_CHANCE = 0.4
LOST_CHANCE = 0.1
DEATH_CHANCE = 0.01
PAUSE_CHANCE = 0.01
PAUSE_SECONDS_MAX = 8.0
FORGETS_CHANCE = 0.3
"""How often a follower that begins again has no word of who gave its times, as from a snapshot."""

ANSWER_BYTES = 150
"""So small that one request brings a part of what there is."""


class Change(NamedTuple):
    """A change as it came: when it was committed, and the value, None of a delete."""

    time: int
    value: bytes | None


def add_changes(came: dict[bytes, list[Change]], rows: bytes, *, from_start: bool) -> int:
    """Add the changes of an answer with the rows before them; return how many there are.

    The row before a change is the one that the change before it has left. Before the first that
    came there was none, if they are followed `from_start`; else it is not known here.
    """
    columns = changes_from(rows, old_rows=True).columns
    for row, op, value, time, _, old in zip(*(c.to_pylist() for c in columns), strict=True):
        known = came[row]
        if known or from_start:
            before = known[-1].value if known else None
            assert old == before, f"{row!r} at {time}: {old!r} is told, {before!r} was there"
        known.append(Change(time, value if op == OPERATION_UPSERT else None))
    return len(columns[0])


class Stored(NamedTuple):
    """What a follower has stored: a token, and how many changes of each row had come by then."""

    token: str
    came: dict[bytes, int]


class Follower:
    """Follows all changes; `came` is what it has, by row."""

    def __init__(self, run: Followed, rng: random.Random) -> None:
        self._run = run
        self._rng = rng
        self.came: dict[bytes, list[Change]] = collections.defaultdict(list)
        segments = Placement(run.old).segments()
        # From before all changes, so that all of them must come.
        begun = [RangePosition(each.start, each.end, 0) for each in segments]
        self.positions = FeedPositions.at(begun)
        self._stored = [Stored(encode_token(UID, begun), {})]
        self._paused_until = 0.0

    def step(self) -> None:
        """Ask a node for the changes of some ranges, or die and begin again."""
        now = self._run.loop.time()
        if now < self._paused_until:
            return
        if self._rng.random() < PAUSE_CHANCE and not self._run.is_calm:
            self._paused_until = now + self._rng.uniform(0, PAUSE_SECONDS_MAX)
        if self._rng.random() < DEATH_CHANCE:
            self._begin_again()
        if self._rng.random() < FOLLOW_CHANCE:
            self._ask()

    @property
    def resolved(self) -> int:
        """The time up to which all changes have come."""
        return min(each.time or 0 for each in self.positions.ranges)

    def _begin_again(self) -> None:
        self._run.counts["feed begun again"] += 1
        del self._stored[max(1, len(self._stored) - self._rng.randrange(10)) :]
        stored = self._stored[-1]
        positions = decode_token(UID, stored.token)
        if self._rng.random() < FORGETS_CHANCE:
            positions = [each._replace(given_by=NOBODY_GAVE) for each in positions]
        self.positions = FeedPositions.at(positions)
        for row, came in self.came.items():
            del came[stored.came.get(row, 0) :]

    def _placement(self) -> Placement:
        """Return who serves what: perhaps as one who comes when the old layout is gone."""
        run = self._run
        over = run.sealed == set(run.old.ids)
        if over and self._rng.random() < 0.5:
            return Placement(run.new)
        return Placement(run.old, run.new, frozenset(run.sealed))

    def _ask(self) -> None:
        self.positions.assign(self._placement())
        if not (nodes := sorted(self._run.network.nodes)):
            return  # all of them are down
        node = self._rng.choice(nodes)
        here = {p.partition_id for p in self._run.network.node(node).partitions()}
        asked = [each for each in self.positions.ranges if each.partition in here]
        self._rng.shuffle(asked)
        if not asked or self._rng.random() < LOST_CHANCE:
            return
        counted = self._answers(node, asked, counts_only=True)
        answers = self._answers(node, asked)
        for both in zip(answers, counted, strict=False):
            self._require_counted(*both)
        if self._rng.random() < LOST_CHANCE:
            return
        for each, answer in zip(asked, answers, strict=False):
            self._took(each, answer)
        positions = self.positions.positions()
        assert positions is not None
        came = {row: len(changes) for row, changes in self.came.items()}
        self._stored = [*self._stored[-20:], Stored(encode_token(UID, positions), came)]

    def _answers(
        self, node: NodeId, asked: list[FollowedRange], *, counts_only: bool = False
    ) -> tuple[RangeChanges, ...]:
        request = FollowChanges(
            ranges=tuple(each.asked for each in asked),
            bytes_max=ANSWER_BYTES,
            old_rows=True,
            counts_only=counts_only,
        )
        try:
            return self._run.network.node(node).change_source.follow(request).ranges
        except MachineDiedError as died:
            self._run.bury(died)
            return ()

    def _require_counted(self, answer: RangeChanges, counted: RangeChanges) -> None:
        """Find the changes of an answer in their numbers, as far as both of them have come."""
        if answer.error is not None or counted.error is not None:
            return
        reached = min(answer.time, counted.time)
        times = changes_from(answer.rows, old_rows=True)["time"].to_pylist() if answer.rows else []
        came = collections.Counter(each for each in times if each <= reached)
        told = {each.time: each.changes for each in counted.commits if each.time <= reached}
        assert told == came
        self._run.counts["feed counted"] += came.total()

    def _took(self, asked: FollowedRange, answer: RangeChanges) -> None:
        counts, before = self._run.counts, asked.time or 0
        if answer.error is not None:
            error = error_from(answer.error)
            counts[f"feed {error.code}"] += 1
            if isinstance(error, FeedTruncatedError):
                self._truncated(asked)
            return
        if asked.partition in self._run.new.ids and asked.given_by in self._run.old.ids:
            counts["feed by reshard streams"] += 1
        self.positions.took(asked, answer)
        counts["feed ended"] += answer.ended
        counts["feed more"] += answer.more
        if not answer.rows:
            return
        times = changes_from(answer.rows, old_rows=True).column(3).to_pylist()
        assert min(times) > before, f"{min(times)} comes after {before}"
        counts["feed changes"] += add_changes(self.came, answer.rows, from_start=True)

    def _truncated(self, asked: FollowedRange) -> None:
        """Go on where the old partition still is, from a token that knows it."""
        asked.offset = None
        if asked.given_by == NOBODY_GAVE:
            asked.given_by = self._run.old.partition_of(asked.start)


class Followed(CutOver):
    """One run, from its seed."""

    is_calm = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.follower = Follower(self, random.Random(f"follower {seed}"))

    def step(self) -> None:
        """Let a moment pass, and follow."""
        super().step()
        self.follower.step()

    def calm(self) -> None:
        """End all faults."""
        super().calm()
        self.is_calm = True

    def settle(self) -> None:
        """Wait until all has come; it is what the partitions have."""
        super().settle()
        newest = max(p.store.last_commit_time for p in self.replicas())
        self.wait_for(
            lambda: self.follower.resolved >= newest,
            lambda: [dataclasses.astuple(each) for each in self.follower.positions.ranges],
        )
        for row in self.rows:
            self._check(row)

    def _check(self, row: bytes) -> None:
        target = self.new.partition_of(int.from_bytes(row[:8], "big"))
        (leader,) = self.leaders(target)
        there, came = versions_of(leader, row), self.follower.came[row]
        assert came == there, f"{row!r}: {came} have come, there are {there}"
        self.counts["feed rows"] += 1


def versions_of(partition: Replica, row: bytes) -> list[Change]:
    """Return the versions that a replica has of a row, the oldest first."""
    chains = partition.store.engine.chains_of([row])
    found = [
        Change(time_of(key), stored[1:] if stored[0] == FLAG_VALUE else None)
        for key, stored in zip(chains.keys, chains.values, strict=True)
        if stored[0] != FLAG_INTENT
    ]
    return sorted(found)
