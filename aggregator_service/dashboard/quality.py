"""Model metrics that a recipe reports per round, as data for line plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import RoundRow
from protocols.recipes.evaluation_curve import POPULARITY

__all__ = ["LAST", "Series", "figures", "quality"]

LAST: Final = 500
"""Maximum number of rounds in a plot."""
_WIDTH: Final = 640.0
_HEIGHT: Final = 160.0
_MARGIN: Final = 8.0


@dataclass(frozen=True)
class Series:
    """One metric over the rounds: points (round number, value), ascending by round.

    popularity: the same metric of the ranking by item counts, to be drawn beside it; empty without one.
    """

    name: str
    points: Sequence[tuple[int, float]]
    popularity: Sequence[tuple[int, float]] = ()

    @property
    def low(self) -> float:
        """The smallest value of the points."""
        return min(value for _, value in (*self.points, *self.popularity))

    @property
    def high(self) -> float:
        """The largest value of the points."""
        return max(value for _, value in (*self.points, *self.popularity))

    @property
    def last(self) -> float:
        """The value of the newest round."""
        return self.points[-1][1]

    def places(self, points: Sequence[tuple[int, float]] | None = None) -> list[tuple[float, float]]:
        """Return the coordinates (x, y) of `points`, by default of the metric, in a box of 640 x 160."""
        first, until = self.points[0][0], self.points[-1][0]
        low, range_ = self.low, self.high - self.low
        return [
            (
                _MARGIN + (number - first) / max(1, until - first) * (_WIDTH - 2 * _MARGIN),
                _HEIGHT - _MARGIN - ((value - low) / range_ if range_ else 0.5) * (_HEIGHT - 2 * _MARGIN),
            )
            for number, value in (self.points if points is None else points)
        ]

    def path(self, points: Sequence[tuple[int, float]] | None = None) -> str:
        """Return the line through `points`, by default of the metric, as SVG path data."""
        return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in self.places(points))


def quality(session: Session, task_id: str) -> list[Series]:
    """Return the metrics of the last 500 completed rounds, by name; empty for recipes that report none."""
    query = select(RoundRow.number, RoundRow.report).where(RoundRow.task_id == task_id, RoundRow.state == "complete")
    rows = session.execute(query.order_by(RoundRow.number.desc()).limit(LAST)).all()[::-1]
    found: dict[str, list[tuple[int, float]]] = {}
    for number, report in rows:
        for name, value in (report or {}).items():
            if isfinite(value):
                found.setdefault(name, []).append((number, float(value)))
    controls = {name: found.pop(name) for name in list(found) if name.startswith(POPULARITY)}
    return [Series(name, points, controls.get(POPULARITY + name, ())) for name, points in sorted(found.items())]


def figures(series: Sequence[Series]) -> list[tuple[int, dict[str, float]]]:
    """Return the same values by round, newest first: (round number, metric name to value)."""
    found: dict[int, dict[str, float]] = {}
    for one in series:
        for number, value in one.points:
            found.setdefault(number, {})[one.name] = value
        for number, value in one.popularity:
            found.setdefault(number, {})[POPULARITY + one.name] = value
    return sorted(found.items(), reverse=True)
