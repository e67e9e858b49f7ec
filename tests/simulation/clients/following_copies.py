"""A copied partition whose changes somebody follows, transactions among them.

The storm is `copy_storm`'s: replicas come by copies and go, leaders change, logs are trimmed and
old versions removed as soon as anybody allows it. A follower asks any replica, also one whose log
begins with a copy; where the log does not reach back to its position it asks others, or begins
again as from a snapshot.

What must hold: the changes that come since it has begun are the versions that the replicas end
with; where those are removed meanwhile, the last change of a row is what there is. A follower that
asks for the rows before the changes gets those that the changes before them have left, or none.
"""

from __future__ import annotations

import collections
import random

from rezone.client.feed.positions import FeedPositions, FollowedRange
from rezone.client.feed.token import decode_token, encode_token
from rezone.datanode.replica.replica import Replica
from rezone.storage.engines.base import TIME_MAX
from rezone.wire.codec.changes import OPERATION_UPSERT, changes_from
from rezone.wire.errors import FeedTruncatedError, error_from
from rezone.wire.layouts import WHOLE
from rezone.wire.messages import FollowChanges, NodeId, RangeChanges
from simulation.clients.following import Change, add_changes, versions_of
from simulation.nodes.disk import MachineDiedError
from simulation.storms.copy_storm import FOR_EVER_SECONDS, PARTITION, CopyStorm

UID = "u"
FOLLOW_CHANCE = 0.3
BURST = 3
LOST_CHANCE = 0.1
DEATH_CHANCE = 0.02
AGAIN_CHANCE = 0.1
OLD_ROWS_CHANCE = 0.6
ANSWER_BYTES = 600


class CopyFollower:
    """Follows one partition's changes.

    `begun` is the time since when they have come, `stored_time` up to when it has a token.
    """

    def __init__(self, run: FollowedCopies) -> None:
        self._run = run
        # Not always: what is asked reaches back as far as the log goes only without them.
        self._old_rows = run.following.random() < OLD_ROWS_CHANCE
        self.begun = 0
        self.came: dict[bytes, list[Change]] = {}
        self.followed = FollowedRange(*WHOLE, None, partition=PARTITION)
        self._stored = ("", dict[bytes, int]())
        self.stored_time = 0

    def begin(self) -> None:
        """Begin with what comes from now on."""
        self.followed = FollowedRange(*WHOLE, None, partition=PARTITION)
        self.came, self._stored = collections.defaultdict(list), ("", {})
        self.stored_time = 0

    def ask(self, node: NodeId) -> None:
        """Ask a node for the next changes; perhaps die before, or lose the answer."""
        rng = self._run.following
        if rng.random() < DEATH_CHANCE and self._stored[0]:
            self._go_back()
        request = FollowChanges(
            ranges=(self.followed.asked,), bytes_max=ANSWER_BYTES, old_rows=self._old_rows
        )
        try:
            (answer,) = self._run.network.node(node).change_source.follow(request).ranges
        except MachineDiedError as died:
            self._run.bury(died)
            return
        if rng.random() >= LOST_CHANCE:
            self._took(answer)

    def _go_back(self) -> None:
        token, counts = self._stored
        self._run.counts["feed begun again"] += 1
        (position,) = decode_token(UID, token)
        (self.followed,) = FeedPositions.at([position]).ranges
        self.followed.partition = PARTITION
        for row, came in self.came.items():
            del came[counts.get(row, 0) :]

    def _took(self, answer: RangeChanges) -> None:
        counts = self._run.counts
        if answer.error is not None:
            error = error_from(answer.error)
            counts[f"feed {error.code}"] += 1
            if (
                isinstance(error, FeedTruncatedError)
                and self._run.following.random() < AGAIN_CHANCE
            ):
                self.begin()
            return
        if self.followed.time is None:
            self.begun = answer.time
        FeedPositions.took(self.followed, answer)
        if answer.rows:
            self._add(answer.rows)
        if self._run.following.random() < AGAIN_CHANCE:
            positions = FeedPositions([self.followed]).positions()
            assert positions is not None
            self.stored_time = self.followed.time or 0
            self._stored = (
                encode_token(UID, positions),
                {row: len(changes) for row, changes in self.came.items()},
            )

    def _add(self, rows: bytes) -> None:
        if self._old_rows:
            added = add_changes(self.came, rows, from_start=False)
            self._run.counts["feed old rows"] += added
            self._run.counts["feed changes"] += added
            return
        for row, op, value, time, _ in zip(*changes_from(rows).columns, strict=True):
            known = value.as_py() if op.as_py() == OPERATION_UPSERT else None
            self.came[row.as_py()].append(Change(time.as_py(), known))
            self._run.counts["feed changes"] += 1


class FollowedCopies(CopyStorm):
    """One run, from its seed."""

    follower: CopyFollower | None = None

    def __init__(self, seed: int) -> None:
        self.following = random.Random(f"follower {seed}")
        super().__init__(seed)
        self.follower = CopyFollower(self)
        self.follower.begin()

    def step(self) -> None:
        """Let a moment pass, and follow."""
        super().step()
        if self.follower is None or self.following.random() >= FOLLOW_CHANCE:
            return
        for _ in range(BURST):
            having = [node.node_id for node in self.nodes() if node.partitions()]
            if having:
                self.follower.ask(self.following.choice(having))

    def settle(self) -> None:
        """Wait until all has come; it is what the replicas have."""
        super().settle()
        follower = self.follower
        assert follower is not None
        newest = max(p.store.last_commit_time for p in self.replicas())
        self.wait_for(lambda: (follower.followed.time or 0) >= newest, lambda: follower.followed)
        (leader,) = self.leaders(PARTITION)
        for row in (*self.rows, *self.in_transactions):
            self._check(follower, leader, row)

    def _check(self, follower: CopyFollower, leader: Replica, row: bytes) -> None:
        came = follower.came.get(row, [])
        assert came == sorted(set(came)), f"{row!r}: {came}"
        if self.config.version_retention_seconds == FOR_EVER_SECONDS:
            there = [each for each in versions_of(leader, row) if each.time > follower.begun]
            assert came == there, f"{row!r}: {came} have come, there are {there}"
        elif came:
            (value,) = leader.store.reader.newest([row], TIME_MAX)
            assert came[-1].value == value, f"{row!r}: {came[-1]} came last, there is {value!r}"
        self.counts["feed rows"] += len(came)
