"""What the PriviRec demo measures: the spectrum after every sum, and how well filters rank with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from client_sdk.evaluation.full_ranking import RankingResult

__all__ = ["PriviRecResult", "Ranked", "SumDone", "write_results"]


@dataclass(frozen=True)
class SumDone:
    """A round that is over. captured, change, singular_values: of the model after it, empty before the iterations."""

    number: int
    step: int
    kind: str
    survivors: int
    seconds: float
    bytes_up: float
    """Mean bytes of HTTP bodies a client."""
    failure: str | None = None
    captured: float | None = None
    change: float | None = None
    singular_values: Sequence[float] = ()


@dataclass(frozen=True)
class Ranked:
    """One way to get the filter's components, ranked over all items."""

    name: str
    ranking: RankingResult


@dataclass(frozen=True)
class PriviRecResult:
    """The whole demo."""

    dataset: str
    users: int
    items: int
    interactions: int
    recipe: str
    parameters: Mapping[str, object]
    mechanism: str
    plan: Mapping[str, object]
    dropped: int
    sums: Sequence[SumDone]
    ranked: Sequence[Ranked]
    warnings: Sequence[str]


def write_results(result: PriviRecResult, folder: Path) -> tuple[Path, Path]:
    """The figures as JSON and the spectrum's way as SVG (matplotlib, the `bench` extra), in `folder`; both paths."""
    from client_sdk.demo.privirec_plot import convergence_plot

    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{result.recipe}-{result.dataset}"
    figures, plot = stem.with_suffix(".json").resolve(), stem.with_suffix(".svg").resolve()
    figures.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    plot.write_text(convergence_plot(result), encoding="utf-8")
    return figures, plot
