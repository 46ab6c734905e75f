"""OpenTelemetry tracing of requests, folds and releases (the extra `otel`). It is off by default."""

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
    """Return the service's tracer from `provider`."""
    return provider.get_tracer(_NAME, metadata.version("hushrec"))


def tracing(traces: Traces) -> tuple[TracerProvider, Callable[[], None]]:
    """Return a tracer provider, and a function that exports the remaining spans when the server stops.

    `otlp` exports to the collector in OTEL_EXPORTER_OTLP_ENDPOINT; OpenTelemetry's other variables apply as well.
    Raises `ParameterError` if the extra is not installed.
    """
    if traces == "none":
        return NoOpTracerProvider(), _no_flush
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider as RecordingProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ParameterError("traces=otlp needs the extra: pip install 'hushrec[otel]'") from None
    provider = RecordingProvider(resource=Resource.create({SERVICE_NAME: _NAME}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider, provider.shutdown


def _no_flush() -> None:
    return
