"""Compares copies and new partitions with their sources, by digests as of one time (B-04)."""

import asyncio
import dataclasses
import functools
from concurrent.futures import Executor

import structlog

from rezone.controller.monitor import WatchedNode
from rezone.domain.resharding_observe import PartKey
from rezone.wire.layouts import Overlap, index_of
from rezone.wire.messages import DigestReply, DigestRequest, PartitionId

log = structlog.get_logger(__name__)

RANGES = 16
DIGEST_TIMEOUT_SECONDS = 600.0
"""Reading a partition gives way to clients, so that 100 GB take about this long."""


@dataclasses.dataclass
class Comparisons:
    """The parts of a re-sharding that were, or are being, compared in this process's life."""

    verified: set[PartKey] = dataclasses.field(default_factory=set)
    differing: set[PartKey] = dataclasses.field(default_factory=set)
    under_way: set[PartKey] = dataclasses.field(default_factory=set)


class CopyDiffersError(Exception):
    """Raised when a copy's rows are not its source's: it must never lead."""


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
