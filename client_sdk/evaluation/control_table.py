"""The small table of controls that stands beside every result, and the flat figures of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ControlRow", "ControlTable"]


@dataclass(frozen=True)
class ControlRow:
    """One control under one protocol."""

    name: str
    """Like popularity or random; one name may stand once for each `against`."""
    against: str
    """What was ranked against, in words; empty where nothing is ranked."""
    tested: int
    """Users that were measured, or ratings."""
    values: tuple[float, ...]
    """One for each of the table's metrics."""


@dataclass(frozen=True)
class ControlTable:
    """Controls that were measured by the same metrics on the same data."""

    metrics: tuple[str, ...]
    """Like HR@10."""
    rows: tuple[ControlRow, ...]

    @property
    def headings(self) -> tuple[str, ...]:
        """For printing, as many as a row of `cells` has."""
        return ("", "ranked against", "tested", *self.metrics)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """For printing, four decimals."""
        return [
            (row.name, row.against, f"{row.tested:,}", *(f"{value:.4f}" for value in row.values)) for row in self.rows
        ]

    def figures(self) -> dict[str, float]:
        """Values under `<name>.<against>.<metric>` with underlines for spaces, like popularity.full_ranking.hr10."""
        found = {}
        for row in self.rows:
            path = [part.replace(" ", "_") for part in (row.name, row.against) if part]
            for metric, value in zip(self.metrics, row.values, strict=True):
                found[".".join([*path, metric.replace("@", "").lower()])] = value
        return found

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> ControlTable:
        """The table that `as_json` gave, after any trip through JSON."""
        rows = (ControlRow(**{**row, "values": tuple(row["values"])}) for row in kept["rows"])
        return cls(tuple(kept["metrics"]), tuple(rows))
