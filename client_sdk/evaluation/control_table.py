"""The table of controls that is shown next to a result, and its figures by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ControlRow", "ControlTable"]


@dataclass(frozen=True)
class ControlRow:
    """The figures of one control under one protocol."""

    name: str
    """For example popularity or random. Rows with the same name differ in `against`."""
    against: str
    """What the test items were ranked against, in words; "" if nothing was ranked."""
    tested: int
    """Number of users, or of ratings, that were evaluated."""
    values: tuple[float, ...]
    """One value for each metric of the table."""


@dataclass(frozen=True)
class ControlTable:
    """Controls that were evaluated by the same metrics on the same data."""

    metrics: tuple[str, ...]
    """Names of the metrics, for example HR@10."""
    rows: tuple[ControlRow, ...]

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of the columns of `cells`."""
        return ("", "ranked against", "tested", *self.metrics)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Rows of text, values with four decimals."""
        return [
            (row.name, row.against, f"{row.tested:,}", *(f"{value:.4f}" for value in row.values)) for row in self.rows
        ]

    def figures(self) -> dict[str, float]:
        """Return the values by `<name>.<against>.<metric>`, for example popularity.full_ranking.hr10.

        Spaces in names are replaced by underscores.
        """
        found = {}
        for row in self.rows:
            path = [part.replace(" ", "_") for part in (row.name, row.against) if part]
            for metric, value in zip(self.metrics, row.values, strict=True):
                found[".".join([*path, metric.replace("@", "").lower()])] = value
        return found

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object from which `from_json` restores the table."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> ControlTable:
        """Return the table from the result of `as_json`, before or after encoding as JSON text."""
        rows = (ControlRow(**{**row, "values": tuple(row["values"])}) for row in kept["rows"])
        return cls(tuple(kept["metrics"]), tuple(rows))
