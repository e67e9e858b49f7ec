"""Compares copies and new partitions with their sources, by digests as of one time (B-04)."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Executor
from typing import Generic, TypeVar

import structlog

from rezone.controller.monitor import WatchedNode
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import Overlap, index_of
from rezone.wire.messages import DigestReply, DigestRequest, PartitionId

log = structlog.get_logger(__name__)

RANGES = 16
DIGEST_TIMEOUT_SECONDS = 600.0
"""Reading a partition gives way to clients, so that 100 GB take about this long."""


COMPARE_AGAIN_SECONDS = 0.5
"""A comparison reads the whole partition on two nodes: one that came too early is not repeated at
once, whatever wakes the passes meanwhile."""

Key = TypeVar("Key", bound=Hashable)


class CopyDiffersError(Exception):
    """Raised when a copy's rows are not its source's: it must never lead."""


class Comparisons(Generic[Key]):
    """What was, or is being, compared in this process's life; `what` names it in the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.verified: set[Key] = set()
        self.differing: set[Key] = set()
        self.under_way: set[Key] = set()

    def is_due(self, key: Key) -> bool:
        """Whether something was not compared yet, and is not just now."""
        return not any(key in keys for keys in (self.under_way, self.verified, self.differing))

    async def run(
        self, key: Key, compare: Callable[[], Awaitable[bool]], ended: Callable[[], None]
    ) -> None:
        """Compare, keep the outcome, and say that it has ended; `key` is under way already."""
        try:
            if await compare():
                self.verified.add(key)
            else:
                await asyncio.sleep(COMPARE_AGAIN_SECONDS)
        except CopyDiffersError as error:
            log.error("compared rows differ", what=self._what, error=str(error))  # noqa: TRY400 - no trace helps here
            self.differing.add(key)
        except RezoneError as error:
            log.warning("not compared", what=self._what, error=str(error))
            await asyncio.sleep(COMPARE_AGAIN_SECONDS)
        finally:
            self.under_way.discard(key)
            ended()


async def verify_copy(
    executor: Executor,
    partition: PartitionId,
    source: WatchedNode,
    target: WatchedNode,
) -> bool:
    """Return whether the copy equals its source; False when it has not applied enough yet.

    The source fixes the time and tells up to which offset it had applied rows then; the copy's
    answer counts only once it has applied at least those. CopyDiffersError names the first
    differing range; RezoneError when a node does not answer.
    """
    there = await _digest(executor, source, DigestRequest(partition=partition, ranges=RANGES))
    request = DigestRequest(partition=partition, as_of=there.as_of, ranges=RANGES)
    here = await _digest(executor, target, request)
    if here.applied_offset < there.applied_offset:
        return False
    for index, (wanted, found) in enumerate(zip(there.digests, here.digests, strict=True)):
        if wanted != found:
            raise CopyDiffersError(
                f"partition {index_of(partition)}: range {index} of {RANGES} on data node "
                f"{target.node} differs from data node {source.node} as of {there.as_of}: "
                f"{here.rows[index]} rows against {there.rows[index]}",
            )
    return True


async def verify_part(
    executor: Executor,
    overlap: Overlap,
    source: WatchedNode,
    heir: WatchedNode,
) -> bool:
    """Return whether a new partition equals an old one in the range that they have in common.

    As of a time up to which the heir has said to have all: then CopyDiffersError tells of every
    difference. Before it has told one, as of the source's time; a difference means nothing then,
    for rows may still be on their way, and is answered by False.
    """
    reached = _imported_up_to(heir, overlap)
    there = await _digest(executor, source, _of_part(overlap, overlap.old, reached))
    here = await _digest(executor, heir, _of_part(overlap, overlap.new, there.as_of))
    if here.digests == there.digests:
        return True
    if reached is None:
        return False
    raise CopyDiffersError(
        f"partition {overlap.new} on data node {heir.node} differs from partition {overlap.old} on "
        f"data node {source.node} in the hashes from {overlap.start} to {overlap.end - 1} as of "
        f"{reached}: {sum(here.rows)} rows against {sum(there.rows)}",
    )


def _of_part(overlap: Overlap, partition: PartitionId, as_of: int | None) -> DigestRequest:
    hashes = (overlap.start, overlap.end - 1)
    return DigestRequest(partition=partition, as_of=as_of, ranges=RANGES, hashes=hashes)


def _imported_up_to(heir: WatchedNode, overlap: Overlap) -> int | None:
    """Return the time up to which an heir says that it has all of its source, None before."""
    report = heir.heard.replicas.get(overlap.new) if heir.heard is not None else None
    imports = report.imports if report is not None else ()
    times = (each.time for each in imports if each.source == overlap.old and each.filled)
    return next(times, 0) or None


async def _digest(executor: Executor, node: WatchedNode, request: DigestRequest) -> DigestReply:
    call = functools.partial(
        node.client.call,
        request,
        DigestReply,
        timeout_seconds=DIGEST_TIMEOUT_SECONDS,
    )
    return await asyncio.get_running_loop().run_in_executor(executor, call)
