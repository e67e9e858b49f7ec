"""Spans of a change feed: one of each poll of a data node that is sampled.

A feed has no end, so there is none of the whole. Most of a poll's time is the wait for changes.

Concurrency: the thread that asks.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rezone.client.requests.traced import RequestTracer
from rezone.wire.errors import RezoneError
from rezone.wire.messages import ChangesFound, FollowChanges


@dataclass
class Poll:
    """One poll: what is sent, and what has come."""

    request: FollowChanges
    found: ChangesFound | None = None


@contextlib.contextmanager
def traced_poll(tracer: RequestTracer | None, request: FollowChanges) -> Iterator[Poll]:
    """Ask within the block; its span ends with it, if the poll is sampled."""
    if tracer is None or not tracer.samples():
        yield Poll(request)
        return
    span = tracer.open("follow_changes")
    poll = Poll(msgspec.structs.replace(request, trace=span.context))
    error: RezoneError | None = None
    try:
        yield poll
    except RezoneError as failure:
        error = failure
        raise
    finally:
        ranges = poll.found.ranges if poll.found is not None else ()
        span.attributes |= {
            "rezone.ranges": len(request.ranges),
            "rezone.bytes": sum(len(each.rows) for each in ranges),
        }
        span.end(error)
