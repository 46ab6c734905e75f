"""The curve of a federated evaluation: sums of the clients' measurements by round, and which model was the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

__all__ = ["BEST_ROUND", "HIT_RATIO", "MEASURES", "MODEL_ROUND", "NDCG", "POPULARITY", "Curve", "CurvePoint"]

HIT_RATIO: Final = "hr@10"
NDCG: Final = "ndcg@10"
POPULARITY: Final = "popularity "
"""Start of the names of metrics of the ranking by item counts."""
BEST_ROUND: Final = "best model round"
"""Name of the figure that says after which round the best measured model was reached."""
MODEL_ROUND: Final = "evaluated model round"
"""Name of the figure that says after which round the measured model was reached."""
_SQUARED: Final = "squared error"
_ABSOLUTE: Final = "absolute error"

MEASURES: Final = {
    "ranking": (HIT_RATIO, NDCG),
    "ratings": (_SQUARED, _ABSOLUTE),
}
"""Names of the summed values by kind of model."""


@dataclass(frozen=True)
class CurvePoint:
    """One measurement: sums over clients.

    model_round: the measured model is that after this round. round: the round of the measurement. clients: how many
    measured, 0 where it was abandoned or could not be opened. sums: of each value, in the order of the measures.
    """

    model_round: int
    round: int
    clients: float
    sums: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """The measurements of a task, oldest first. measures: names of the summed values.

    popularity: sums of the first measurement for the ranking by item counts, by name; empty without item counts.
    """

    measures: tuple[str, ...]
    points: tuple[CurvePoint, ...]
    popularity: Mapping[str, float] = field(default_factory=dict)

    def metrics(self, point: CurvePoint) -> dict[str, float]:
        """Return the metrics of a measurement by name; empty if no client measured.

        Those of the ranking by item counts are the same for all measurements: they are measured once. Errors of ratings
        are in units of the range: `rmse` and `mae`.
        """
        if point.clients < 1:
            return {}
        means = dict(zip(self.measures, (value / point.clients for value in point.sums), strict=True))
        if _SQUARED not in means:
            first = self.points[0].clients if self.points else 0.0
            return means | ({name: value / first for name, value in self.popularity.items()} if first >= 1 else {})
        return {"rmse": sqrt(max(0.0, means[_SQUARED])), "mae": means[_ABSOLUTE]}

    def figures(self) -> dict[str, float]:
        """Return the newest measurement's metrics, its clients, and the best model's round, for a round's report."""
        newest, best = self.points[-1], self.best
        figures = {**self.metrics(newest), "evaluated clients": newest.clients}
        figures[MODEL_ROUND] = float(newest.model_round)
        return figures if best is None else figures | {BEST_ROUND: float(best.model_round)}

    @property
    def best(self) -> CurvePoint | None:
        """The best measurement, by NDCG@10 or the squared error; the earliest of equal ones. None without any."""
        return max(self._counted, key=self._quality, default=None)

    @property
    def _counted(self) -> list[CurvePoint]:
        """The measurements in which at least one client took part."""
        return [point for point in self.points if point.clients >= 1]

    @property
    def since_best(self) -> int:
        """Number of measurements after the best one; 0 without any."""
        best, counted = self.best, self._counted
        return 0 if best is None else len(counted) - 1 - counted.index(best)

    def _quality(self, point: CurvePoint) -> float:
        metrics = self.metrics(point)
        return metrics[NDCG] if NDCG in metrics else -metrics["rmse"]
