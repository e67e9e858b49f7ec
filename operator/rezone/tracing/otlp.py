"""Spans by OTLP over HTTP, as the variables of OpenTelemetry say (OTEL_EXPORTER_OTLP_*).

A thread of the SDK's sends what has come together. Its queue is bounded: where the receiver is away
spans are dropped, and nothing waits for it.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from rezone.tracing.spans import Span

SPANS_MAX: Final = 16_384
EXPORT_SECONDS_MAX: Final = 5
"""So long the end of the process may wait for a receiver that does not answer."""
_ERROR_CHARACTERS_MAX: Final = 1000


class OtlpSink:
    """Sends spans to the receiver at `endpoint`, or the one that the environment names."""

    def __init__(self, service: str, instance: str, endpoint: str = "") -> None:
        resource = {"service.name": service, "service.instance.id": instance}
        self._resource = Resource.create(resource)
        self._scope = InstrumentationScope("rezone")
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(
                endpoint=f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None,
                timeout=EXPORT_SECONDS_MAX,
            ),
            max_queue_size=SPANS_MAX,
        )

    def send(self, spans: Iterable[Span]) -> None:
        """Queue spans; what is over the limit is dropped."""
        for span in spans:
            self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Send what is queued, for a few seconds at most."""
        self._processor.force_flush(EXPORT_SECONDS_MAX * 1000)
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        parent = None if span.parent_id is None else _context(span.trace_id, span.parent_id)
        described = span.error[:_ERROR_CHARACTERS_MAX]
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind(span.side.value),
            status=Status(StatusCode.ERROR, described) if described else Status(StatusCode.OK),
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
            instrumentation_scope=self._scope,
        )


def _context(trace: int, span: int) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace, span, is_remote=False, trace_flags=flags)


def _nanoseconds(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000) * 1000
