"""Compares a copy with its source, digest by key range, at one time (B-04)."""

import asyncio
import functools
from concurrent.futures import Executor

import structlog

from rezone.controller.monitor import WatchedNode
from rezone.wire.messages import DigestReply, DigestRequest, PartitionId

log = structlog.get_logger(__name__)

RANGES = 16
DIGEST_TIMEOUT_SECONDS = 600.0
"""Reading a partition gives way to clients, so that 100 GB take about this long."""


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
                f"partition {partition}: range {index} of {RANGES} on data node {target.node} "
                f"differs from data node {source.node} as of {there.as_of}: "
                f"{here.rows[index]} rows against {there.rows[index]}",
            )
    return True


async def _digest(executor: Executor, node: WatchedNode, request: DigestRequest) -> DigestReply:
    call = functools.partial(
        node.client.call,
        request,
        DigestReply,
        timeout_seconds=DIGEST_TIMEOUT_SECONDS,
    )
    return await asyncio.get_running_loop().run_in_executor(executor, call)
