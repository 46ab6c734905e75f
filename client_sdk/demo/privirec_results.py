"""What the PriviRec demo measures: the spectrum after every sum, and how well filters rank with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_sdk.evaluation.full_ranking import RankingResult

__all__ = [
    "PriviRecResult",
    "Ranked",
    "SumDone",
]


@dataclass(frozen=True)
class SumDone:
    """A round that is over. captured, change, singular_values: of the model after it, empty before the iterations."""

    number: int
    sum_index: int
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
