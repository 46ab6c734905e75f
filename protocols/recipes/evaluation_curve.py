"""The curve of a federated evaluation: sums of the clients' measurements by round, and which model was the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from math import sqrt
from typing import Final

NDCG: Final = "ndcg@10"
POPULARITY: Final = "popularity "  # start of the names of metrics of the ranking by item counts
BEST_ROUND: Final = "best model round"
"""Name of the figure that says after which round the best measured model was reached."""
ADOPTED_ROUND: Final = "adopted model round"
"""Name of the figure that says after which round the model was reached that was adopted last, in tasks with a gate."""
MODEL_ROUND: Final = "evaluated model round"
"""Name of the figure that says after which round the measured model was reached."""
EVALUATED_CLIENTS: Final = "evaluated clients"
"""Name of the figure that says how many clients measured."""
_SQUARED: Final = "squared error"
_ABSOLUTE: Final = "absolute error"

MEASURES: Final = {"ranking": ("hr@10", NDCG), "ratings": (_SQUARED, _ABSOLUTE)}
"""Names of the summed values by kind of model."""


@dataclass(frozen=True)
class CurvePoint:
    """One measurement: sums over clients."""

    model_round: int
    """The measured model is that after this round."""
    round: int
    """The round of the measurement."""
    clients: float
    """How many measured, 0 where it was abandoned or could not be opened."""
    sums: tuple[float, ...]
    """Of each value, in the order of the measures."""


@dataclass(frozen=True)
class Curve:
    """The measurements of a task, oldest first."""

    measures: tuple[str, ...]
    """Names of the summed values."""
    points: tuple[CurvePoint, ...]
    popularity: Mapping[str, float] = field(default_factory=dict)
    """Sums of the first measurement for the ranking by item counts, by name; empty without item counts."""

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
        figures = {**self.metrics(newest), EVALUATED_CLIENTS: newest.clients}
        figures[MODEL_ROUND] = float(newest.model_round)
        return figures if best is None else figures | {BEST_ROUND: float(best.model_round)}

    def adopted(self, gate: float) -> CurvePoint | None:
        """Return the measurement of the model that is adopted; None without any.

        The first model is, and each that is not below the last one that was by more than `gate` standard errors of
        their difference, which are taken as half that of a mean, as for `fallen`.
        """
        last: CurvePoint | None = None
        for point in self._counted:
            if last is None or self._level(point) >= self._level(last) - gate * self._error(last) / 2:
                last = point
        return last

    @property
    def best(self) -> CurvePoint | None:
        """The best measurement, by NDCG@10 or the squared error; the earliest of equal ones. None without any."""
        return max(self._counted, key=self._level, default=None)

    @property
    def _counted(self) -> list[CurvePoint]:
        """The measurements in which at least one client took part."""
        return [point for point in self.points if point.clients >= 1]

    @property
    def fallen(self) -> int:
        """Number of newest measurements in a row that are below the best by more than half its standard error.

        All are over one cohort: with a correlation of 7/8 that half is the standard error of their difference.
        """
        best = self.best
        if best is None:
            return 0
        limit = self._level(best) - self._error(best) / 2
        return sum(1 for _ in takewhile(lambda point: self._level(point) < limit, reversed(self._counted)))

    def _level(self, point: CurvePoint) -> float:
        """Return the mean that is compared: NDCG@10, or the squared error with a minus sign."""
        mean = point.sums[self._compared] / point.clients
        return -mean if _SQUARED in self.measures else mean

    def _error(self, point: CurvePoint) -> float:
        """Return the standard error of a mean: at most that of zeros and ones, and of squares of normal errors."""
        mean = min(1.0, max(0.0, point.sums[self._compared] / point.clients))
        variance = 2.0 * mean**2 if _SQUARED in self.measures else mean * (1.0 - mean)
        return sqrt(variance / point.clients)

    @property
    def _compared(self) -> int:
        return self.measures.index(_SQUARED if _SQUARED in self.measures else NDCG)
