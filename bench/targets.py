"""The targets of the benchmarks: the bounds that `bench.key_tables` gives to keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bench._report import Figure
from bench.key_tables import TABLES
from bench.keys import Key, Sign

__all__ = ["TARGETS", "Target", "verdicts"]


@dataclass(frozen=True)
class Target:
    """A bound on the value of one key. `meaning` is shown on the page."""

    key: str
    sign: Sign
    bound: float
    meaning: str

    @property
    def words(self) -> str:
        """The sign and the bound, such as `>= 40` or `<= 1e-6`."""
        bound = f"{self.bound:g}" if self.bound >= 1e-3 else f"{self.bound:.0e}".replace("e-0", "e-")
        return f"{self.sign} {bound}"

    def met(self, value: float) -> bool:
        """Whether `value` is within the bound."""
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def margin(self, value: float) -> float:
        """How many times better than the bound `value` is: 1 at the bound, less than 1 when the target is missed."""
        if self.sign == ">=":
            return value / self.bound
        return self.bound / value if value > 0 else float("inf")


def _targets(rows: Iterable[Key]) -> tuple[Target, ...]:
    return tuple(Target(row.pattern, *row.bound, row.meaning) for row in rows if row.bound is not None)


TARGETS: Final[dict[str, tuple[Target, ...]]] = {
    script: found for script, rows in TABLES.items() if (found := _targets(rows))
}
"""Targets by script, which is also the name of the results file."""


def verdicts(script: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Rows for a script's final table: `key (bound)` -> the value, "MISSED" behind it, or "not measured"."""
    rows: dict[str, Figure] = {}
    for target in TARGETS[script]:
        value = figures.get(target.key)
        if isinstance(value, int | float):
            rows[f"{target.key} ({target.words})"] = f"{value:.4g}{'' if target.met(value) else '   MISSED'}"
        else:
            rows[f"{target.key} ({target.words})"] = "not measured"
    return rows
