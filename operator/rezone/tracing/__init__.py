"""Spans of OpenTelemetry, for who makes them; `otlp` sends them, and needs the extra `tracing`."""
