"""A copied partition is backfilled meanwhile, as a new one is from those of the layout before.

What comes are versions older than all that is there: whoever sends a snapshot saves the rows that
they change ahead of its scan, and sends these early (SS-03). One source after the other is made up
here; asking for its rows and taking them in is the real `ReshardStream`.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Sequence

from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.reshard_streams import ReshardStream
from rezone.storage.engines.base import (
    FLAG_TOMBSTONE,
    FLAG_VALUE,
    FLAGS,
    TIME_BYTES,
    time_suffix,
)
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA, columns_of, versions_batch
from rezone.wire.layouts import Overlap
from rezone.wire.messages import (
    BackfillVersions,
    BeginReshard,
    PartitionId,
    ReshardBackfill,
    ReshardBegun,
    ReshardPosition,
)
from simulation.loop import START
from simulation.nodes.received import Versions

FIRST_SOURCE: PartitionId = 100
SOURCES_MAX = 6
ROWS_PER_CHUNK_MAX = 25
VERSIONS_MAX = 3
CHUNK_CHANCE = 0.15
DELETE_CHANCE = 0.2
FIRST_TIME = int((START.timestamp() - 60) * 1e6)
SOURCE_TIMES = 1_000
BACKFILLED_BEFORE = FIRST_TIME + SOURCES_MAX * SOURCE_TIMES
"""So many commit times each source has for itself; all else is written after the last of them."""

_KEYSPACE = 1 << 64


class Backfills:
    """The sources of one partition, and who of its leaders takes their rows in."""

    def __init__(
        self,
        rng: random.Random,
        partition: PartitionId,
        rows: Sequence[bytes],
        value_of: Callable[[bytes], bytes],
        counts: collections.Counter[str],
    ) -> None:
        self._rng = rng
        self._rows = sorted(rows)
        self._counts = counts
        sources = range(FIRST_SOURCE, FIRST_SOURCE + rng.randint(1, SOURCES_MAX))
        self._overlaps = [Overlap(0, _KEYSPACE, source, partition) for source in sources]
        self._content = {source: self._made_up(source, value_of) for source in sources}
        self._stream: ReshardStream | None = None

    def _made_up(self, source: PartitionId, value_of: Callable[[bytes], bytes]) -> Versions:
        found: Versions = {}
        time = FIRST_TIME + (source - FIRST_SOURCE) * SOURCE_TIMES
        for row in self._rows:
            for _ in range(self._rng.randint(0, VERSIONS_MAX)):
                time += 1
                deletes = self._rng.random() < DELETE_CHANCE
                stored = value_of(b"%d of %d" % (time, source))
                flag = FLAGS[FLAG_TOMBSTONE] if deletes else FLAGS[FLAG_VALUE]
                found[row + time_suffix(time)] = flag + (b"" if deletes else stored)
        return found

    def are_over(self, leader: Replica) -> bool:
        """Whether all rows of all sources have come."""
        positions = [leader.store.reshard_position(overlap.old) for overlap in self._overlaps]
        return all(position is not None and not position.backfilling for position in positions)

    def check(self, replica: Replica, here: Versions) -> None:
        """Assert that a replica has all of them, where nothing is ever collected."""
        for source, content in self._content.items():
            missing = content.keys() - here.keys()
            assert not missing, f"node {replica.node_id} lacks {len(missing)} rows of {source}"

    def begin(self, leader: Replica) -> bool:
        """Have a leader begin with a source, before anything is written; whether all are begun.

        From then on until all is here nothing is collected: it may cover what has yet to come.
        """
        for overlap in self._overlaps:
            if leader.store.reshard_position(overlap.old) is None:
                stream = self._stream_of(leader, overlap)
                if stream is not None and isinstance(stream.next_backfill(0), BeginReshard):
                    start = ReshardPosition(stream.source, 0, 0, "", backfilling=True)
                    stream.begun(ReshardBegun(position=start, producers=(), transactions=()))
                return False
        return True

    def step(self, leader: Replica) -> None:
        """Have a leader ask for what comes next of the first source that is not over."""
        for overlap in self._overlaps:
            position = leader.store.reshard_position(overlap.old)
            if position is not None and position.backfilling:
                stream = self._stream_of(leader, overlap)
                if stream is not None and self._rng.random() < CHUNK_CHANCE:
                    self._backfill(stream)
                return

    def _backfill(self, stream: ReshardStream) -> None:
        request = stream.next_backfill(0)
        if isinstance(request, ReshardBackfill):
            stream.backfilled_with(request, self._chunk(stream.source, request.after))
            self._counts["backfilled"] += 1

    def _stream_of(self, leader: Replica, overlap: Overlap) -> ReshardStream | None:
        """Return the reshard stream of a source in the leadership of the day."""
        leadership, stream = leader.leadership, self._stream
        if leadership is None:
            return None
        if stream is None or (stream.overlap, stream.leadership) != (overlap, leadership):
            stream = self._stream = ReshardStream(leader, overlap, leadership)
        return stream

    def _chunk(self, source: PartitionId, after: bytes) -> BackfillVersions:
        content = sorted(self._content[source].items())
        left = sorted({key[:-TIME_BYTES] for key, _ in content if key[:-TIME_BYTES] > after})
        rows = left[: self._rng.randint(1, ROWS_PER_CHUNK_MAX)]
        pairs = [pair for pair in content if pair[0][:-TIME_BYTES] in rows]
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        batch = versions_batch(columns_of(keys, values)) if pairs else VERSIONS_SCHEMA.empty_table()
        return BackfillVersions(
            versions=batch.serialize().to_pybytes(),
            reached=rows[-1] if rows else after,
            end=rows == left,
        )
