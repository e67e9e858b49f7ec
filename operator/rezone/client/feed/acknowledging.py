"""Acknowledgements of a named feed: data nodes trim the log that is kept for it.

Each node is told of every partition by which time it needs no more of it, as a token says: a
replica that misses that keeps its log for longer, up to the feed's limits, and loses nothing. So
nodes that cannot be reached are left out, as long as one is told.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rezone.client.feed.token import RangePosition
from rezone.wire.errors import ConflictError, ForbiddenError, NotReadyError, RezoneError
from rezone.wire.layouts import Segment
from rezone.wire.messages import Ack, AcknowledgeChanges, AcknowledgedPartition


class Node(Protocol):
    """A connection to a data node."""

    def call(self, request: AcknowledgeChanges, reply: type[Ack], *, timeout_seconds: float) -> Ack:
        """Call it; raises RezoneError."""
        ...


def acknowledged(
    segments: Iterable[Segment], positions: Sequence[RangePosition]
) -> tuple[AcknowledgedPartition, ...]:
    """Return up to when all changes of each partition have come; none of those that lack some."""
    found: dict[int, int | None] = {}
    for segment in segments:
        time = _time_of(segment, positions)
        known = found.get(segment.partition, time)
        found[segment.partition] = None if time is None or known is None else min(time, known)
    return tuple(
        AcknowledgedPartition(partition, time)
        for partition, time in found.items()
        if time is not None
    )


def _time_of(segment: Segment, positions: Sequence[RangePosition]) -> int | None:
    """Return the earliest time of a segment's hashes; None where the positions leave some out."""
    if segment.start < positions[0].start or segment.end > positions[-1].end:
        return None  # positions have no gap in between
    inside = (p.time for p in positions if p.start < segment.end and segment.start < p.end)
    return min(inside)


def tell_all(
    node: Callable[[str], Node],
    addresses: Sequence[str],
    request: AcknowledgeChanges,
    timeout_seconds: float,
) -> None:
    """Tell all nodes; when none takes it, raise what the last one that was reached has said.

    One that refuses may not have heard of a feed yet that the zone has now. NotReadyError when none
    was reached.
    """
    taken, refusal, error = False, None, RezoneError("no data node is known")
    for address in addresses:
        try:
            node(address).call(request, Ack, timeout_seconds=timeout_seconds)
            taken = True
        except (ConflictError, ForbiddenError) as refused:
            refusal = refused
        except RezoneError as failed:
            error = failed
    if taken:
        return
    if refusal is not None:
        raise refusal
    raise NotReadyError(f"no data node was told of an acknowledgement: {error}") from error
