"""What took some time, and where that is told."""

import enum
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


class Side(enum.Enum):
    """Which side of a request a span is of; the values are those of OpenTelemetry's SpanKind."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2


@dataclass(frozen=True, kw_only=True)
class Span:
    """What took some time; ids as OpenTelemetry has them, `parent_id` None at the root."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    start: datetime
    end: datetime
    error: str = ""
    side: Side = Side.INTERNAL
    attributes: Mapping[str, str | int] = field(default_factory=dict)


class SpanSink(Protocol):
    """Where spans go."""

    def send(self, spans: Iterable[Span]) -> None:
        """Take spans, at once and without I/O; what is too much is dropped."""
        ...

    def close(self) -> None:
        """Send what is left, for a few seconds at most; may block."""
        ...


def otlp_sink(service: str, instance: str, endpoint: str = "") -> SpanSink:
    """Return what sends spans by OTLP, to OTEL_EXPORTER_OTLP_ENDPOINT where none is given.

    Raises ModuleNotFoundError without the extra `tracing`.
    """
    otlp = importlib.import_module("rezone.tracing.otlp")
    sink: SpanSink = otlp.OtlpSink(service, instance, endpoint)
    return sink
