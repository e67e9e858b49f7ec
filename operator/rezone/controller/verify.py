"""Compares copies and new partitions with their sources, by digests as of one time (B-04)."""

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
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


PART_PAUSES_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""When the heir of a range is asked for its digest, after the source and after one another."""


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
    *,
    pauses_seconds: Sequence[float] = PART_PAUSES_SECONDS,
) -> bool:
    """Return whether a new partition equals an old one in the range that they have in common.

    Both as of one time of the source's. The heir may still have rows to import up to that time, so
    it is asked several times over half a minute. CopyDiffersError when it has imported all that
    there is in the end, and the source still says the same; False when that is not sure.
    """
    hashes = (overlap.start, overlap.end - 1)
    first = DigestRequest(partition=overlap.old, ranges=RANGES, hashes=hashes)
    there = await _digest(executor, source, first)
    again = DigestRequest(partition=overlap.new, as_of=there.as_of, ranges=RANGES, hashes=hashes)
    here = there
    for pause in pauses_seconds:
        await asyncio.sleep(pause)
        here = await _digest(executor, heir, again)
        if here.digests == there.digests:
            return True
    repeat = DigestRequest(partition=overlap.old, as_of=there.as_of, ranges=RANGES, hashes=hashes)
    still = await _digest(executor, source, repeat)
    if still.digests != there.digests or not _has_all(heir, overlap):
        return False
    raise CopyDiffersError(
        f"partition {overlap.new} on data node {heir.node} differs from partition {overlap.old} on "
        f"data node {source.node} in the hashes {hashes} as of {there.as_of}: "
        f"{sum(here.rows)} rows against {sum(there.rows)}",
    )


def _has_all(heir: WatchedNode, overlap: Overlap) -> bool:
    """Return whether an heir says that it has imported all that its source has committed."""
    report = heir.heard.replicas.get(overlap.new) if heir.heard is not None else None
    imports = report.imports if report is not None else ()
    return any(each.source == overlap.old and each.lag_rows == 0 for each in imports)


async def _digest(executor: Executor, node: WatchedNode, request: DigestRequest) -> DigestReply:
    call = functools.partial(
        node.client.call,
        request,
        DigestReply,
        timeout_seconds=DIGEST_TIMEOUT_SECONDS,
    )
    return await asyncio.get_running_loop().run_in_executor(executor, call)
