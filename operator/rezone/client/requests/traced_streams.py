"""Spans of scans, lookups and selections: one of the whole, one of each request to a data node.

Concurrency: the threads that read parts of a stream share its trace.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

import msgspec

from rezone.client.requests.traced import OpenSpan, RequestTracer
from rezone.wire.errors import RezoneError
from rezone.wire.messages import IndexTicket, ScanTicket, SelectTicket

REQUESTS_MAX: Final = 256
"""Of one stream that have a span: a scan of a large table asks many thousand times."""

TicketT = TypeVar("TicketT", bound=ScanTicket | IndexTicket | SelectTicket)


@dataclass
class Asking(Generic[TicketT]):
    """One request of a stream: what is sent, and how many rows have come."""

    ticket: TicketT
    rows: int = 0


class StreamTrace:
    """The spans of one stream, if it is sampled."""

    def __init__(self, tracer: RequestTracer | None, operation: str) -> None:
        self._tracer = tracer if tracer is not None and tracer.samples() else None
        self._operation = operation
        self._span: OpenSpan | None = None
        if self._tracer is not None:
            self._span = self._tracer.open(operation)
        self._lock = threading.Lock()
        self._requests = self._rows = 0

    def __enter__(self) -> Self:
        """Begin the stream: its end is the block's."""
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """End the span of the whole stream."""
        span, self._span = self._span, None
        if span is not None:
            span.attributes |= {"rezone.requests": self._requests, "rezone.rows": self._rows}
            span.end(error if isinstance(error, RezoneError) else None)

    @contextlib.contextmanager
    def asking(self, ticket: TicketT) -> Iterator[Asking[TicketT]]:
        """Ask one data node; the span of it ends with the block."""
        with self._lock:
            self._requests += 1
            number = self._requests
        if self._tracer is None or self._span is None or number > REQUESTS_MAX:
            yield Asking(ticket)
            return
        span = self._tracer.open(f"{self._operation} request", self._span)
        asking = Asking(msgspec.structs.replace(ticket, trace=span.context))
        error: RezoneError | None = None
        try:
            yield asking
        except RezoneError as failure:
            error = failure
            raise
        finally:
            with self._lock:
                self._rows += asking.rows
            span.attributes |= {"rezone.partition": ticket.partition, "rezone.rows": asking.rows}
            span.end(error)
