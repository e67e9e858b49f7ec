"""Compares copies and new partitions with their sources, by digests as of one time (B-04)."""

import asyncio
import collections
import functools
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Executor
from typing import Generic, TypeVar

import structlog

from rezone.controller.nodes.monitor import WatchedNode
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.layouts import Overlap, index_of
from rezone.wire.messages import (
    Ack,
    DigestReply,
    DigestRequest,
    Fence,
    NoteCompared,
    PartitionId,
)

log = structlog.get_logger(__name__)

RANGES = 16
DIGEST_TIMEOUT_SECONDS = 600.0
"""Reading gives clients their time: 100 GB of a partition take about this long."""
SILENT_SECONDS_MAX = 30.0
"""A node that answers no poll for so long will not answer this either. Not at once: a busy node is
silent for a moment, and a digest that is given up is read again from its beginning."""
NOTE_SECONDS = 10.0
TOLD_SECONDS = 10.0
TOLD_LOOK_SECONDS = 0.05

COMPARE_AGAIN_SECONDS = 0.5
COMPARE_AGAIN_SECONDS_MAX = 60.0
COMPARE_AGAIN_FACTOR = 1.6
"""A comparison reads the whole partition on two nodes: what could not be compared rests, longer
each time, whatever wakes the passes meanwhile. No even factor: attempts would come in step with
what writes regularly, and find each time that the newest rows are not applied yet."""

DIFFERENCES_MAX = 8
"""After so many differences in a row it counts as different what no time tells to be complete; with
the rests between them that takes twenty seconds, in which the first commit would have come."""

ATTEMPTS_COUNTED_MAX = 12
"""More make no rest longer."""

Key = TypeVar("Key", bound=Hashable)
Sleep = Callable[[float], Awaitable[None]]


class CopyDiffersError(Exception):
    """Raised when a copy's rows are not its source's: it must never lead."""


class NotComparedError(Exception):
    """Raised when a comparison says nothing yet; the message says why."""


class DiffersSoFarError(NotComparedError):
    """Raised when rows differ that may still be on their way."""


class Comparisons(Generic[Key]):
    """What was, or is being, compared in this process's life; `what` names it in the log.

    `verified` and `differing` are final. What could be neither is compared again after a rest, for
    as long as somebody asks for it; `failing` says why it was not the last time.
    """

    def __init__(self, what: str, sleep: Sleep = asyncio.sleep) -> None:
        self._what = what
        self._sleep = sleep
        self.verified: set[Key] = set()
        self.differing: set[Key] = set()
        self.under_way: set[Key] = set()
        self.failing: dict[Key, str] = {}
        self._resting: set[Key] = set()
        self._attempts: collections.Counter[Key] = collections.Counter()
        self._differences: collections.Counter[Key] = collections.Counter()

    def is_due(self, key: Key) -> bool:
        """Whether something was not compared yet, is not just now, and does not rest."""
        known = (self.under_way, self._resting, self.verified, self.differing)
        return not any(key in keys for keys in known)

    async def run(
        self, key: Key, compare: Callable[[], Awaitable[None]], ended: Callable[[], None]
    ) -> None:
        """Compare and keep the outcome; `key` is under way already.

        Says that it has ended, and once more when a rest is over.
        """
        try:
            await compare()
            self._decided(key, self.verified)
        except CopyDiffersError as error:
            self._differs(key, error)
        except DiffersSoFarError as error:
            self._differences[key] += 1
            if self._differences[key] >= DIFFERENCES_MAX:
                self._differs(key, error)
            else:
                self._failed(key, error)
        except (NotComparedError, RezoneError) as error:
            del self._differences[key]
            self._failed(key, error)
        finally:
            self.under_way.discard(key)
            ended()
        if key in self._resting:
            seconds = COMPARE_AGAIN_SECONDS * COMPARE_AGAIN_FACTOR ** (self._attempts[key] - 1)
            await self._sleep(min(seconds, COMPARE_AGAIN_SECONDS_MAX))
            self._resting.discard(key)
            ended()

    def _differs(self, key: Key, error: Exception) -> None:
        log.error("compared rows differ", what=self._what, error=str(error))
        self._decided(key, self.differing)

    def _decided(self, key: Key, keys: set[Key]) -> None:
        keys.add(key)
        self.failing.pop(key, None)
        del self._attempts[key], self._differences[key]

    def _failed(self, key: Key, error: Exception) -> None:
        log.warning("not compared", what=self._what, error=str(error))
        self.failing[key] = str(error)
        self._attempts[key] = min(self._attempts[key] + 1, ATTEMPTS_COUNTED_MAX)
        self._resting.add(key)


async def verify_copy(
    executor: Executor,
    partition: PartitionId,
    source: WatchedNode,
    target: WatchedNode,
    *,
    fence: Fence,
) -> None:
    """Return when the copy equals its source, and its data node has written that down.

    The source fixes the time and tells up to which offset it had applied rows then; the copy's
    answer counts only once it has applied at least those: NotComparedError before. CopyDiffersError
    names the first differing range; RezoneError when a node does not answer.
    """
    there = await _digest(executor, source, DigestRequest(partition=partition, ranges=RANGES))
    request = DigestRequest(partition=partition, as_of=there.as_of, ranges=RANGES)
    here = await _digest(executor, target, request)
    if here.applied_offset < there.applied_offset:
        raise NotComparedError(
            f"data node {target.node} has not applied all rows of data node {source.node} yet"
        )
    for index, (wanted, found) in enumerate(zip(there.digests, here.digests, strict=True)):
        if wanted != found:
            raise CopyDiffersError(
                f"partition {index_of(partition)}: range {index} of {RANGES} on data node "
                f"{target.node} differs from data node {source.node} as of {there.as_of}: "
                f"{here.rows[index]} rows against {there.rows[index]}",
            )
    if here.uncompared:
        note = NoteCompared(fence=fence, partition=partition, uncompared=here.uncompared)
        call = functools.partial(target.client.call, note, Ack, timeout_seconds=NOTE_SECONDS)
        # By `answer`, which keeps whom this coordinator has told its epoch.
        await target.answer(executor, call)
        await _until_told(target, partition, here.uncompared)


async def _until_told(node: WatchedNode, partition: PartitionId, uncompared: str) -> None:
    """Return when the report no longer says so: by it decisions are made, and all before was old.

    NotComparedError when it still does after a while.
    """
    deadline = asyncio.get_running_loop().time() + TOLD_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        report = node.node_state.replicas.get(partition) if node.node_state is not None else None
        if report is None or report.uncompared != uncompared:
            return
        await asyncio.sleep(TOLD_LOOK_SECONDS)
    raise NotComparedError(f"data node {node.node} has not said yet that it knows the outcome")


async def verify_range(
    executor: Executor,
    overlap: Overlap,
    source: WatchedNode,
    target: WatchedNode,
) -> None:
    """Return when a new partition equals an old one in the range that they have in common.

    As of a time up to which the target has said to have all: then CopyDiffersError tells of every
    difference. Before it has told one, as of the source's time; one difference means nothing then,
    for rows may still be on their way: DiffersSoFarError. It never tells one of a source in which
    nothing was ever committed. RezoneError when a node does not answer.
    """
    reached = _resharded_up_to(target, overlap)
    there = await _digest(executor, source, _of_part(overlap, overlap.old, reached))
    here = await _digest(executor, target, _of_part(overlap, overlap.new, there.as_of))
    if here.digests == there.digests:
        return
    kind = DiffersSoFarError if reached is None else CopyDiffersError
    raise kind(
        f"partition {overlap.new} on data node {target.node} differs from partition {overlap.old} "
        f"on "
        f"data node {source.node} in the hashes from {overlap.start} to {overlap.end - 1} as of "
        f"{there.as_of}: {sum(here.rows)} rows against {sum(there.rows)}",
    )


def _of_part(overlap: Overlap, partition: PartitionId, as_of: int | None) -> DigestRequest:
    hashes = (overlap.start, overlap.end - 1)
    return DigestRequest(partition=partition, as_of=as_of, ranges=RANGES, hashes=hashes)


def _resharded_up_to(target: WatchedNode, overlap: Overlap) -> int | None:
    """Return the time up to which a target says that it has all of its source, None before."""
    report = target.node_state.replicas.get(overlap.new) if target.node_state is not None else None
    reshard_progress = report.reshard_progress if report is not None else ()
    times = (
        each.time for each in reshard_progress if each.source == overlap.old and each.backfilled
    )
    return next(times, 0) or None


async def _digest(executor: Executor, node: WatchedNode, request: DigestRequest) -> DigestReply:
    """Return a digest; NotReadyError when the node is lost meanwhile, or was before."""
    if node.silent.is_set():
        # Each call to it would hold a thread until its deadline.
        raise NotReadyError(f"data node {node.node} is silent", unreachable=1)
    call = functools.partial(
        node.client.call,
        request,
        DigestReply,
        timeout_seconds=DIGEST_TIMEOUT_SECONDS,
    )
    return await node.ask(executor, call, silent_seconds_max=SILENT_SECONDS_MAX)
