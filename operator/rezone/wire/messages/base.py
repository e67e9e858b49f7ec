"""What all messages share, and those that belong to no kind of exchange."""

from typing import Annotated

import msgspec

from rezone.wire.errors import ErrorInfo
from rezone.wire.ranges import Count, CountOrNone

NodeId = CountOrNone

NOBODY: NodeId = -1
"""In the place of a leader that nobody has been told of."""

PartitionId = Count


class Message(msgspec.Struct, frozen=True, omit_defaults=True, tag=True, kw_only=True):
    """The base of all messages; the tag is the class name."""


class Fence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What every control call carries: who sent it and by which trigger.

    A replica persists the highest of each before it acts and refuses lower ones.
    """

    coordinator_epoch: Count
    revision: Count = 0


class TraceContext(msgspec.Struct, frozen=True, array_like=True):
    """Of which span of OpenTelemetry a request is a part; data nodes of before skip it."""

    trace_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    span_id: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class Ack(Message, frozen=True):
    """The request was carried out, or had been before."""


class Failure(Message, frozen=True):
    """A request failed; `opaque` says which."""

    opaque: Count
    error: ErrorInfo


class Heartbeat(Message, frozen=True):
    """An end of a channel is there; the side that has opened the channel answers with its own."""
