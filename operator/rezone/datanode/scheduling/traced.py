"""Spans of requests whose clients have sampled them (`wire.messages.TraceContext`).

A span for the request at this node, and one for each step of it, one after the other:

queue      from when the request was read until its entry is appended, or its rows are read
append     the entry is built and put into the log; alone or with others
replicate  until it is on every in-sync disk: own sync and followers, side by side
apply      its rows go into the engine, until it is answered
read       rows are read, until it is answered

Steps are told by the request's context, which its message has; one that is not known here is no
matter. Without a tracer nothing of this is called. Streams (scans, lookups, selections) and calls
(changes) have a span from when their first rows are asked for, and the steps `queue` and `read`.

Concurrency: any thread. Steps of one request follow each other.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from rezone.datanode.scheduling.requests import Request, operation_of
from rezone.datanode.settings import Clock, NodeSettings
from rezone.tracing.spans import Side, Span, SpanSink, otlp_sink
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Failure, Message, NodeId, TraceContext

Send = Callable[[Message, Request, bytes], None]
Item = TypeVar("Item")

TRACED_MAX: Final = 1024
"""Requests under way that are traced; more of them have no span here."""

STEPS_MAX: Final = 8
"""Of one request: repeats under its context make no more."""

QUEUE: Final = "queue"
APPEND: Final = "append"
REPLICATE: Final = "replicate"
APPLY: Final = "apply"
READ: Final = "read"


@dataclass
class _Traced:
    """One request under way."""

    name: str
    partition: int
    begun: datetime
    steps: list[tuple[str, float]] = field(default_factory=list)


class _Applying(threading.local):
    """When a thread has last begun to apply; each thread has its own."""

    since = 0.0

    def begins(self, now: float) -> None:
        """Note that it begins."""
        self.since = now


class NodeTracer:
    """Makes spans of requests under way, and tells the sink of them when they are answered."""

    def __init__(self, sink: SpanSink, node: NodeId, clock: Clock) -> None:
        self._sink = sink
        self._node = node
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[TraceContext, _Traced] = {}
        self._applying = _Applying()

    def begin(self, context: TraceContext, message: Message) -> bool:
        """Note a request that has come; False when it is not traced."""
        operation = operation_of(message)
        name = operation.value if operation is not None else type(message).__name__
        begun = datetime.fromtimestamp(self._clock.micros() / 1e6, UTC)
        traced = _Traced(name, getattr(message, "partition", 0), begun)
        traced.steps.append((QUEUE, self._clock.monotonic()))
        with self._lock:
            if context in self._open or len(self._open) >= TRACED_MAX:
                return False
            self._open[context] = traced
            return True

    def step(self, context: TraceContext, name: str) -> None:
        """Note that another step of a request begins."""
        traced = self._open.get(context)
        if traced is not None and len(traced.steps) < STEPS_MAX:
            traced.steps.append((name, self._clock.monotonic()))

    def applies(self) -> None:
        """Note that the calling thread begins to apply what it will answer then."""
        self._applying.begins(self._clock.monotonic())

    def answering(self, context: TraceContext, send: Send) -> Send:
        """Return what answers a request that is traced, and ends its span."""

        def answer(message: Message, taken: Request, body: bytes = b"") -> None:
            try:
                send(message, taken, body)
            finally:
                error = message.error if isinstance(message, Failure) else None
                self._end(context, f"{error.code}: {error.message}" if error is not None else "")

        return answer

    @contextlib.contextmanager
    def reading(self, message: Message) -> Iterator[None]:
        """Have a span of what is done within, if the message is of a trace."""
        context = getattr(message, "trace", None)
        if context is None or not self.begin(context, message):
            yield
            return
        error = ""
        try:
            self.step(context, READ)
            yield
        except RezoneError as failure:
            error = f"{failure.code}: {failure}"
            raise
        finally:
            self._end(context, error)

    def streaming(self, message: Message, items: Iterator[Item]) -> Iterator[Item]:
        """Pass a stream on; its span ends with it, also where nobody reads it to its end."""
        with self.reading(message):
            yield from items

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        self._sink.close()

    def _end(self, context: TraceContext, error: str) -> None:
        with self._lock:
            traced = self._open.pop(context, None)
        if traced is None:
            return
        # Another attempt of the same request may still add steps.
        traced = replace(traced, steps=list(traced.steps))
        steps, end = traced.steps, self._clock.monotonic()
        since = self._applying.since
        if steps[-1][0] == REPLICATE and since > steps[-1][1]:
            steps.append((APPLY, since))
        self._sink.send(self._spans(context, traced, end, error))

    def _spans(self, context: TraceContext, traced: _Traced, end: float, error: str) -> list[Span]:
        trace, parent = (int.from_bytes(each) for each in (context.trace_id, context.span_id))
        # Of a span that this client has made once: the ids of its parts follow from it.
        own = _part(parent, self._node + 1)
        origin = traced.steps[0][1]

        def at(time: float) -> datetime:
            return traced.begun + timedelta(seconds=time - origin)

        whole = Span(
            name=f"data node {traced.name}",
            trace_id=trace,
            span_id=own,
            parent_id=parent,
            start=traced.begun,
            end=at(end),
            side=Side.SERVER,
            error=error,
            attributes={"rezone.node": self._node, "rezone.partition": traced.partition},
        )
        ends = [*(time for _, time in traced.steps[1:]), end]
        steps = zip(traced.steps, ends, strict=True)
        return [
            whole,
            *(
                Span(
                    name=name,
                    trace_id=trace,
                    span_id=_part(own, 1 + index),
                    parent_id=own,
                    start=at(since),
                    end=at(until),
                )
                for index, ((name, since), until) in enumerate(steps)
            ),
        ]


def node_tracer(settings: NodeSettings, node: NodeId, clock: Clock) -> NodeTracer | None:
    """Return what traces requests, None where that is off.

    Raises ModuleNotFoundError where it is on, without the extra `tracing`.
    """
    if not settings.tracing_endpoint:
        return None
    sink = otlp_sink("rezone-data-node", f"{node}-{os.getpid()}", settings.tracing_endpoint)
    return NodeTracer(sink, node, clock)


def _part(span: int, number: int) -> int:
    """Return the id of a span's part: another one for each, by a step of a random number's kind."""
    mixed = (span + number * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    return (mixed ^ (mixed >> 27)) or 1
