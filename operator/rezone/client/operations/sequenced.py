"""Batches that are the same requests whoever writes them, as often as they are written.

For work that may be done again, or by two at a time: a unit of a load (Spark repeats and speculates
tasks), a micro-batch of a stream (drivers die). What a request is, its producer and its number
follow from the rows and from two things that all of its writers know:

* *Slices*: the partitions of one layout, noted when the work began. Each slice of the key hashes
  has a producer of its own, and requests are cut at its bounds.
* *Layouts*: those that have served since then, noted before anything is sent to their partitions. A
  request says under which names its rows may be known: as sent to the partition that served them in
  each of these layouts. A target of a re-sharding knows these names of its sources
  (docs/decisions/0162).

A request's number is that of its last row among all rows of the work, in their order. Each slice's
rows go to a partition in this order, each request when the one before is answered, and only while
the partition serves all that its range and the slice have in common. So where a number is known all
rows up to it are there (docs/decisions/0498).

Concurrency: requests of one slice to one partition go one after the other, all others at a time.
"""

import bisect
import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from rezone.client.operations.producer import is_behind
from rezone.client.operations.zone import Zone
from rezone.client.requests import batches
from rezone.client.requests.asking import Requests
from rezone.client.routing.placement import Placement
from rezone.client.settings import OutcomeUnknownError
from rezone.wire.codec import bodies
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.producers import producer_id_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import ReshardedError, RezoneError, SequenceReusedError
from rezone.wire.layouts import Layout, generation_of
from rezone.wire.messages import ORIGINAL_IDS_MAX, Message, OriginalId, PartitionId, WriteRequest

LANES_AT_ONCE = 16


class Sequenced(NamedTuple):
    """What all writers of some work agree on.

    `producer` names the work in its zone; a lower `epoch` is fenced where a higher one has written.
    `slices` is the layout in which the work began; `layouts` those that are noted, in any order.
    """

    producer: str
    epoch: int
    slices: Layout
    layouts: tuple[Layout, ...]


class Interval(NamedTuple):
    """Key hashes of one slice, from `start` to the next one, that the same partitions had.

    `before`: those of earlier layouts, in their order. `partition` serves them now; None while that
    serves the slice in part only.
    """

    start: int
    slice: PartitionId
    before: tuple[PartitionId, ...]
    partition: PartitionId | None


@functools.lru_cache(maxsize=8)
def intervals_of(
    slices: Layout, layouts: tuple[Layout, ...], placement: Placement
) -> tuple[Interval, ...] | None:
    """Return all hashes as intervals, in order; None when a layout that serves is not noted."""
    serving = placement.segments()
    firsts = [one.start for one in serving]
    serving_generations = {generation_of(one.partition) for one in serving}
    noted = sorted(set(layouts))
    newest = next((one for one in noted if one.generation == max(serving_generations)), None)
    if newest is None or not serving_generations <= {one.generation for one in noted}:
        return None
    starts = {*firsts}
    for layout in {slices, *noted}:
        starts.update(layout.range_of(partition).start for partition in layout.ids)
    found: list[Interval] = []
    sharers: defaultdict[tuple[PartitionId, PartitionId | None], set[PartitionId]]
    sharers = defaultdict(set)
    for start in sorted(starts):
        partition = serving[bisect.bisect_right(firsts, start) - 1].partition
        earlier = [one for one in noted if one.generation < generation_of(partition)]
        before = tuple(one.partition_of(start) for one in earlier)[-ORIGINAL_IDS_MAX:]
        slice_ = slices.partition_of(start)
        sharers[slice_, newest.partition_of(start)].add(partition)
        # Not cut at the bounds of a layout to come: a request is the same before and in a cut-over.
        if not found or found[-1][1:] != (slice_, before, partition):
            found.append(Interval(start, slice_, before, partition))
    # A target that shares its part of a slice with a source takes no rows of the slice yet.
    return tuple(
        one._replace(partition=None) if len(sharers[one.slice, one.partition]) > 1 else one
        for one in found
    )


class Run(NamedTuple):
    """The rows [start, end) of a batch: one request."""

    start: int
    end: int
    interval: Interval


def runs_of(
    codec: RowCodec, batch: Any, intervals: Sequence[Interval], *, delete: bool, bytes_max: int
) -> list[Run]:
    """Return the requests of a batch; InvalidRowError for the first row that may not be written.

    ValueError when the rows do not stand in the order of their hashes.
    """
    hashes = encoded_rows(codec, batch).hashes()
    if (hashes[1:] < hashes[:-1]).any():
        raise ValueError("the rows of a batch must be in the order of their row ids")
    starts = np.array([one.start for one in intervals], np.uint64)
    where = np.searchsorted(starts, hashes, side="right") - 1
    slices = np.array([one.slice for one in intervals], np.int64)
    # By slices first, whoever serves them: the same cuts in each layout, and then finer ones.
    parts = batches.checked_parts(
        codec, batch, lambda _: slices[where], delete=delete, bytes_max=bytes_max
    )
    ends = np.cumsum([part.rows.num_rows for part in parts], dtype=np.int64)
    inner = np.flatnonzero(np.diff(where)) + 1
    cuts = np.unique(np.concatenate(([0], ends, inner))).tolist()
    return [Run(start, end, intervals[where[start]]) for start, end in itertools.pairwise(cuts)]


class SequencedWrites:
    """Sends such batches; thread-safe."""

    def __init__(self, zone: Zone, requests: Requests, *, bytes_max: int) -> None:
        self._zone = zone
        self._requests = requests
        self._bytes_max = bytes_max

    def write(
        self, codec: RowCodec, batch: Any, work: Sequenced, first_row: int, *, delete: bool
    ) -> bool:
        """Write a batch whose first row is that of this number in the work, counted from 0.

        All rows before it are written. False where some rows cannot be written by what is noted and
        served now. Errors of `runs_of` before anything is sent; OutcomeUnknownError, or any
        RezoneError that says no, of the first lane that has ended with one.
        """
        placement = self._zone.placement
        intervals = intervals_of(work.slices, work.layouts, placement)
        if intervals is None:
            return False
        runs = runs_of(codec, batch, intervals, delete=delete, bytes_max=self._bytes_max)
        lanes: defaultdict[tuple[PartitionId, PartitionId], list[Run]] = defaultdict(list)
        for run in runs:
            if run.interval.partition is not None:
                lanes[run.interval.slice, run.interval.partition].append(run)

        def send(lane: list[Run]) -> bool:
            return all(
                self._is_written(batch, run, work, first_row + run.end, delete=delete)
                for run in lane
            )

        with ThreadPoolExecutor(LANES_AT_ONCE, "rezone-sequenced") as pool:
            written = all(list(pool.map(send, lanes.values())))
        return written and sum(map(len, lanes.values())) == len(runs)

    def _is_written(
        self, batch: Any, run: Run, work: Sequenced, number: int, *, delete: bool
    ) -> bool:
        """Write a run, or find it written; False where its partition is over."""
        slice_, partition = run.interval.slice, run.interval.partition
        assert partition is not None  # noqa: S101 - others are in no lane
        producer_id = producer_id_of(self._zone.config.zone_uid, f"{work.producer}/{slice_}")

        def message(opaque: int) -> Message:
            return WriteRequest(
                opaque=opaque,
                partition=partition,
                producer_id=producer_id,
                sequence=number,
                producer_epoch=work.epoch,
                delete=delete,
                # What was sent there may have been more rows than these: no digest would fit.
                original_ids=tuple(OriginalId(one, number, b"") for one in run.interval.before),
            )

        body = bodies.to_ipc(batch.slice(run.start, run.end - run.start))
        outcome, attempts = self._requests.ask(partition, message, body)
        if isinstance(outcome, ReshardedError):
            return False
        if not isinstance(outcome, RezoneError) or _is_there(outcome):
            return True
        if attempts > 0 and outcome.retryable:
            raise OutcomeUnknownError(
                f"partition {partition}: after {attempts} attempts the outcome of a write is "
                f"unknown; the last error: {outcome}"
            ) from outcome
        raise outcome


def _is_there(error: RezoneError) -> bool:
    """Whether the run's last row is known to be there, and so all before it.

    Where the number is known with another digest, the rows were cut in another way.
    """
    return is_behind(error) or isinstance(error, SequenceReusedError)
