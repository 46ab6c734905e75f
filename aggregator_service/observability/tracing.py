"""Spans of requests, folds and releases, for OpenTelemetry collectors (the extra `otel`). None are made by default."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Final, Literal

from opentelemetry.trace import NoOpTracerProvider, Tracer, TracerProvider

from protocols.errors import ParameterError

__all__ = ["Traces", "tracer_of", "tracing"]

Traces = Literal["none", "otlp"]
_NAME: Final = "hushrec-aggregator"


def tracer_of(provider: TracerProvider) -> Tracer:
    """The tracer of this service."""
    return provider.get_tracer(_NAME, metadata.version("hushrec"))


def tracing(traces: Traces) -> tuple[TracerProvider, Callable[[], None]]:
    """What makes spans, and what sends the last of them off at the end.

    `otlp` sends to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names (OpenTelemetry's own variables hold).
    `ParameterError` when the extra is not installed.
    """
    if traces == "none":
        return NoOpTracerProvider(), _nothing
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider as Recording
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ParameterError("traces=otlp needs the extra: pip install 'hushrec[otel]'") from None
    provider = Recording(resource=Resource.create({SERVICE_NAME: _NAME}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider, provider.shutdown


def _nothing() -> None:
    return
