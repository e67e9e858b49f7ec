"""A batch of rows that is the same requests each time it is written, over re-shardings too.

For a writer that may die in the middle of a batch and begins the batch again (the driver of a
stream). Requests are cut from rows in the order of their hashes. A request's sequence is the number
of the batch's rows up to its end, so a partition that knows a sequence has all rows before it.

Where the zone is re-sharded the caller first notes which partition serves which range by now
(`sent_ranges`), then writes again: requests are cut further at the new bounds, and each carries the
names of the requests that it is a part of (`OriginalId`). The partitions of the next layout know by
these names what their sources have written (docs/decisions/0162). Ranges that come to a partition
later have higher sequences there (`turns`), as they are written later.

Concurrency: the requests of one partition go one after the other, those of several at a time.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from rezone.client.operations.producer import Producer, is_behind
from rezone.client.requests import batches
from rezone.client.requests.asking import Requests
from rezone.client.settings import OutcomeUnknownError
from rezone.wire.codec import bodies
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.producers import digest_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import ReshardedError, RezoneError, SequenceReusedError
from rezone.wire.layouts import Segment
from rezone.wire.messages import ORIGINAL_IDS_MAX, Message, OriginalId, PartitionId, WriteRequest

PARTITIONS_AT_ONCE = 16
_TURN_BITS = 40
"""A batch has fewer rows than this many bits count."""


class SentRange(msgspec.Struct, frozen=True, array_like=True):
    """From which key hash on, up to the next range, rows were sent to which partitions.

    The latest is the last one. `turns` counts, beside each partition, the re-shardings that were
    noted before this range came to it.
    """

    start: int
    partitions: tuple[PartitionId, ...] = ()
    turns: tuple[int, ...] = ()


def sent_ranges(before: Sequence[SentRange], segments: Sequence[Segment]) -> tuple[SentRange, ...]:
    """Return the ranges of a batch, after `before`, where these segments serve by now."""
    turn = max((turn for one in before for turn in one.turns), default=-1) + 1
    starts = sorted({one.start for one in before} | {one.start for one in segments})
    found = []
    for start in starts:
        earlier = _covering(before, start) if before else SentRange(start)
        partition = _covering(segments, start).partition
        if earlier.partitions[-1:] == (partition,):
            found.append(SentRange(start, earlier.partitions, earlier.turns))
        else:
            found.append(SentRange(start, (*earlier.partitions, partition), (*earlier.turns, turn)))
    return tuple(found)


def _covering(ranges: Sequence[Any], start: int) -> Any:
    return next(one for one in reversed(ranges) if one.start <= start)


@dataclasses.dataclass(eq=False)
class Run:
    """The rows [start, end) of a batch: one request, a part of `part` of the first cut."""

    start: int
    end: int
    part: int
    sent: SentRange
    original_ids: list[OriginalId] = dataclasses.field(default_factory=list)

    @property
    def partition(self) -> PartitionId:
        """Where it goes."""
        return self.sent.partitions[-1]

    @property
    def sequence(self) -> int:
        """Its number there."""
        return _sequence(self.sent.turns[-1], self.end)


def runs_of(
    codec: RowCodec, batch: Any, ranges: Sequence[SentRange], *, delete: bool, bytes_max: int
) -> list[Run]:
    """Return the requests of a batch; InvalidRowError for the first row that may not be written.

    ValueError when the rows do not stand in the order of their hashes.
    """
    hashes = encoded_rows(codec, batch).hashes()
    if (hashes[1:] < hashes[:-1]).any():
        raise ValueError("the rows of a batch must be in the order of their row ids")
    starts = np.array([one.start for one in ranges], np.uint64)
    ranges_of_rows = np.searchsorted(starts, hashes, side="right") - 1
    firsts = np.array([one.partitions[0] for one in ranges], np.int64)
    groups = np.concatenate(([0], np.cumsum(firsts[1:] != firsts[:-1])))
    parts = batches.checked_parts(
        codec, batch, lambda _: groups[ranges_of_rows], delete=delete, bytes_max=bytes_max
    )
    ends = np.cumsum([part.rows.num_rows for part in parts], dtype=np.int64)
    inner = np.flatnonzero(np.diff(ranges_of_rows)) + 1
    cuts = np.unique(np.concatenate(([0], ends, inner))).tolist()
    runs = [
        Run(start, end, int(np.searchsorted(ends, start, "right")), ranges[ranges_of_rows[start]])
        for start, end in itertools.pairwise(cuts)
    ]
    for depth in range(max((len(one.partitions) for one in ranges), default=1) - 1):
        _name(batch, runs, depth, delete=delete)
    return runs


def _name(batch: Any, runs: list[Run], depth: int, *, delete: bool) -> None:
    """Give runs the name under which their rows were sent to the partition at `depth`."""
    earlier = depth + 1
    for _, group in itertools.groupby(runs, lambda run: (run.part, run.sent.partitions[:earlier])):
        same = list(group)
        gone_on = [run for run in same if len(run.sent.partitions) > earlier]
        if gone_on:
            start, end, sent = same[0].start, same[-1].end, same[0].sent
            digest = digest_of(bodies.to_ipc(batch.slice(start, end - start)), delete=delete)
            name = OriginalId(sent.partitions[depth], _sequence(sent.turns[depth], end), digest)
            for run in gone_on:
                run.original_ids = [*run.original_ids, name][-ORIGINAL_IDS_MAX:]


def _sequence(turn: int, end: int) -> int:
    return turn << _TURN_BITS | end


class SequencedWrites:
    """Sends such batches by the client's producer; thread-safe."""

    def __init__(self, producer: Producer, requests: Requests, *, bytes_max: int) -> None:
        self._producer = producer
        self._requests = requests
        self._bytes_max = bytes_max

    def write(
        self, codec: RowCodec, batch: Any, ranges: Sequence[SentRange], *, delete: bool
    ) -> bool:
        """Write a batch; False when others serve some of its rows by now.

        Errors of `runs_of` before anything is sent; OutcomeUnknownError, or any RezoneError that
        says no, of the first partition that has ended with one.
        """
        runs = runs_of(codec, batch, ranges, delete=delete, bytes_max=self._bytes_max)
        lanes: dict[PartitionId, list[Run]] = {}
        for run in runs:
            lanes.setdefault(run.partition, []).append(run)
        for lane in lanes.values():
            lane.sort(key=lambda run: run.sequence)

        def send(lane: list[Run]) -> bool:
            return all(self._is_written(batch, run, delete=delete) for run in lane)

        with ThreadPoolExecutor(PARTITIONS_AT_ONCE, "rezone-sequenced") as pool:
            return all(list(pool.map(send, lanes.values())))

    def _is_written(self, batch: Any, run: Run, *, delete: bool) -> bool:
        """Write a run, or find it written; False where its partition is over."""
        producer = self._producer.open()

        def message(opaque: int) -> Message:
            return WriteRequest(
                opaque=opaque,
                partition=run.partition,
                producer_id=producer.producer_id,
                sequence=run.sequence,
                producer_epoch=producer.producer_epoch,
                delete=delete,
                original_ids=tuple(run.original_ids),
            )

        body = bodies.to_ipc(batch.slice(run.start, run.end - run.start))
        outcome, attempts = self._requests.ask(run.partition, message, body)
        if isinstance(outcome, ReshardedError):
            return False
        if not isinstance(outcome, RezoneError) or _is_there(outcome):
            return True
        if attempts > 0 and outcome.retryable:
            raise OutcomeUnknownError(
                f"partition {run.partition}: after {attempts} attempts the outcome of a write is "
                f"unknown; the last error: {outcome}"
            ) from outcome
        raise outcome


def _is_there(error: RezoneError) -> bool:
    """Whether an earlier attempt has written the run's last row, and so all before it.

    Where the number is known with another digest, earlier requests were cut in another way.
    """
    return is_behind(error) or isinstance(error, SequenceReusedError)
