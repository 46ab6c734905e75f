"""Results of the PriviRec demo: the spectrum after every sum, and the ranking quality of the filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_sdk.evaluation.full_ranking import RankingResult
from client_sdk.simulation.measures import Measured
from client_sdk.simulation.verdict import Advised, verdict

__all__ = ["FilterRanking", "PriviRecResult", "SumResult"]


@dataclass(frozen=True)
class SumResult:
    """One round, completed or failed.

    number: the round's number. sum_index: index of the sum among the task's sums, from 1. kind: degrees, iteration or
    gram. survivors: clients in the sum. seconds: wall-clock time. failure: the reason if the round failed.
    captured, change, singular_values: of the model after a completed iteration; None and () otherwise.
    """

    number: int
    sum_index: int
    kind: str
    survivors: int
    seconds: float
    bytes_up: float
    """Mean bytes of HTTP bodies that one client sent."""
    failure: str | None = None
    captured: float | None = None
    change: float | None = None
    singular_values: Sequence[float] = ()


@dataclass(frozen=True)
class FilterRanking:
    """Ranking quality of a filter over all items. name: the filter and the source of its components."""

    name: str
    ranking: RankingResult


@dataclass(frozen=True)
class PriviRecResult:
    """Results of a complete demo: data set, recipe, every sum, the rankings and the task's warnings.

    plan: the task's sum plan. dropped: contributions that were missing, over all rounds.
    """

    dataset: str
    users: int
    items: int
    interactions: int
    recipe: str
    parameters: Mapping[str, object]
    mechanism: str
    plan: Mapping[str, object]
    dropped: int
    sums: Sequence[SumResult]
    ranked: Sequence[FilterRanking]
    warnings: Sequence[str]

    @property
    def verdict(self) -> str:
        """Whether the devices rank better than popularity, the last of `ranked`, and by how many standard errors."""
        ours, popular = (
            Measured({"NDCG@20": entry.ranking.ndcg}, entry.ranking.user_ndcg)
            for entry in (self.ranked[0], self.ranked[-1])
        )
        found = verdict(
            [len(self.sums)],
            [ours],
            {"popularity": popular},
            Advised(trains=False),
            recipe=self.recipe,
            higher_is_better=True,
        )
        return found.text
