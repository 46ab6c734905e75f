"""Metrics and spans of the round engine's folds and releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import NoOpTracer, Tracer

from aggregator_service.observability.metrics import Metrics

__all__ = ["Instruments"]


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
