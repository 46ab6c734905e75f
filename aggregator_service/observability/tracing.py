"""OpenTelemetry tracing of requests, folds and releases (the extra `otel`; off by default), and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Final, Literal

from opentelemetry.trace import NoOpTracer, NoOpTracerProvider, Tracer, TracerProvider

from aggregator_service.observability.metrics import Metrics
from protocols.errors import ParameterError

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


@dataclass(frozen=True)
class Instruments:
    """Metrics and tracer of one application. The defaults are metrics that nobody reads and no spans."""

    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoOpTracer)

    @contextmanager
    def fold(self, task_id: str, number: int, batch: int) -> Iterator[None]:
        """Time and trace a fold; enter it when the job is submitted.

        number: of the round. batch: contributions in the fold.
        """
        attributes: dict[str, str | int] = {"hushrec.task": task_id, "hushrec.round": number, "hushrec.batch": batch}
        with self.tracer.start_as_current_span("fold", attributes=attributes), self.metrics.fold():
            yield

    @contextmanager
    def release(self, task_id: str, number: int, survivors: int, *, masked: bool) -> Iterator[None]:
        """Time and trace a release, including the removal of masks; number: of the round."""
        attributes: dict[str, str | int] = {
            "hushrec.task": task_id,
            "hushrec.round": number,
            "hushrec.survivors": survivors,
        }
        name = "unmask" if masked else "release"
        with self.tracer.start_as_current_span(name, attributes=attributes), self.metrics.release(masked):
            yield
