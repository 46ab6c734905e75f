"""What the round engine tells of its work: seconds for `/metrics`, and a span each for folds and releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import NoOpTracer, Tracer

from aggregator_service.observability.metrics import Metrics

__all__ = ["Instruments"]


@dataclass(frozen=True)
class Instruments:
    """Figures and spans of one application; by default nobody looks at either."""

    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoOpTracer)

    @contextmanager
    def fold(self, task_id: str, number: int, batch: int) -> Iterator[None]:
        """Around a fold, from the moment it is handed to the pool."""
        attributes: dict[str, str | int] = {"hushrec.task": task_id, "hushrec.round": number, "hushrec.batch": batch}
        with self.tracer.start_as_current_span("fold", attributes=attributes), self.metrics.fold():
            yield

    @contextmanager
    def release(self, task_id: str, number: int, survivors: int, *, masked: bool) -> Iterator[None]:
        """Around a release, the taking off of masks included."""
        attributes: dict[str, str | int] = {
            "hushrec.task": task_id,
            "hushrec.round": number,
            "hushrec.survivors": survivors,
        }
        name = "unmask" if masked else "release"
        with self.tracer.start_as_current_span(name, attributes=attributes), self.metrics.release(masked):
            yield
