"""Spans of requests: some of them are sampled, and say so to the data node that gets them.

A sampled request has one span, from when the client takes it to its outcome, over all its
attempts. Its id travels in the request's message, so the data nodes' spans are children of it. A
scan, lookup or selection that is sampled has one span over all data nodes (`traced_streams`), and
each poll of a change feed has one.

Concurrency: any thread may begin a span; it is ended by the thread that ends the request.
"""

import importlib
import importlib.util
import os
import random
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from rezone.client.requests.request import Outcome, Request
from rezone.client.routing.routes import RouteCache
from rezone.client.settings import ClientSettings
from rezone.tracing.spans import Side, Span, SpanSink, otlp_sink
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Message, TraceContext

_HAS_API: Final = importlib.util.find_spec("opentelemetry") is not None


class RequestTracer:
    """Samples requests; `ratio` of them, 0 to 1, and tells the sink of each."""

    def __init__(
        self,
        sink: SpanSink,
        ratio: float,
        table: Callable[[], str],
        *,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._sink = sink
        self._ratio = ratio
        self._table = table
        self._clock = clock
        self._rng = rng

    def begin(self, request: Request) -> None:
        """Have a request be traced, if it is sampled; before it is sent for the first time."""
        if self.samples():
            _Traced(self, request)

    def samples(self) -> bool:
        """Whether something that is about to begin is to be traced."""
        return self._rng.random() < self._ratio

    def open(self, operation: str, inside: "OpenSpan | None" = None) -> "OpenSpan":
        """Begin a span, inside another one or as all sampled ones are."""
        if inside is None:
            return OpenSpan(self, operation, *self.ids())
        own = self._rng.getrandbits(64) or 1
        return OpenSpan(self, operation, inside.trace, inside.span, own)

    def ids(self) -> tuple[int, int | None, int]:
        """Return a trace's id, the span around this one if there is any, and a fresh span's id."""
        trace, parent = _current() if _HAS_API else (0, None)
        return trace or self._rng.getrandbits(128) or 1, parent, self._rng.getrandbits(64) or 1

    def now(self) -> float:
        """Return the client's monotonic time."""
        return self._clock()

    def tell(self, span: Span) -> None:
        """Send a span that has ended."""
        self._sink.send((span,))

    @property
    def table(self) -> str:
        """The table's name."""
        return self._table()

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        self._sink.close()


class OpenSpan:
    """What is under way and sampled; `attributes` are told at its end.

    Concurrency: one thread at a time.
    """

    def __init__(
        self, tracer: RequestTracer, operation: str, trace: int, parent: int | None, span: int
    ) -> None:
        self.trace, self.span = trace, span
        self.attributes: dict[str, str | int] = {}
        self._tracer = tracer
        self._operation = operation
        self._parent = parent
        self._time, self._begun = datetime.now(UTC), tracer.now()

    @property
    def context(self) -> TraceContext:
        """What the message to a data node has of it."""
        return TraceContext(self.trace.to_bytes(16, "big"), self.span.to_bytes(8, "big"))

    def name(self, operation: str) -> None:
        """Say of what it is, where that is known only now."""
        self._operation = operation

    def end(self, error: RezoneError | None = None) -> None:
        """Send it."""
        self._tracer.tell(self.ended(error))

    def ended(self, error: RezoneError | None = None) -> Span:
        """Return what it was, when it ends now."""
        took = timedelta(seconds=self._tracer.now() - self._begun)
        failed = {} if error is None else {"error.type": error.code}
        return Span(
            name=f"rezone {self._operation or 'request'}",
            trace_id=self.trace,
            span_id=self.span,
            parent_id=self._parent,
            start=self._time,
            end=self._time + took,
            side=Side.CLIENT,
            error="" if error is None else f"{error.code}: {error}",
            attributes={
                "rezone.table": self._tracer.table,
                "rezone.operation": self._operation,
                **self.attributes,
                **failed,
            },
        )


class _Traced:
    """One request that is sampled: it stands between the dispatcher and whoever has asked."""

    def __init__(self, tracer: RequestTracer, request: Request) -> None:
        self._tracer = tracer
        self._request = request
        self._span = tracer.open("")  # its messages say of what
        self._message, self._done = request.message, request.done
        request.message, request.done = self._make, self._end

    def _make(self, opaque: int) -> Message:
        message: Any = self._message(opaque)
        self._span.name(_snake(type(message).__name__.removesuffix("Request")))
        return msgspec.structs.replace(message, trace=self._span.context)  # type: ignore[no-any-return]

    def _end(self, outcome: Outcome) -> None:
        self._span.attributes |= {
            "rezone.partition": self._request.partition,
            "rezone.attempts": self._request.attempts,
            "rezone.bytes": len(self._request.body),
        }
        ended = self._span.ended(outcome if isinstance(outcome, RezoneError) else None)
        try:
            self._done(outcome)
        finally:
            self._tracer.tell(ended)


def _snake(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


def request_tracer(
    settings: ClientSettings,
    routes: RouteCache,
    *,
    clock: Callable[[], float],
    rng: random.Random,
) -> RequestTracer | None:
    """Return what traces requests, None where none is.

    Raises ValueError for a ratio that is none, ModuleNotFoundError without the extra `tracing`.
    """
    ratio = settings.trace_ratio
    if not 0 <= ratio <= 1:
        raise ValueError(f"trace_ratio {ratio} is not from 0 to 1")
    if not ratio:
        return None

    def table() -> str:
        return routes.config.zone if routes.config is not None else ""

    sink = otlp_sink("rezone-client", f"{socket.gethostname()}-{os.getpid()}")
    return RequestTracer(sink, ratio, table, clock=clock, rng=rng)


def _current() -> tuple[int, int | None]:
    """Return the trace and span that the calling thread is within, by OpenTelemetry's API."""
    api = importlib.import_module("opentelemetry.trace")
    found = api.get_current_span().get_span_context()
    return (found.trace_id, found.span_id) if found.is_valid else (0, None)
