"""Quality of a simulated model on a split: by which metrics, for which users, beside which controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions, LeaveOneOut
from client_sdk.data.splits import Split
from client_sdk.evaluation.full_ranking import rank_all
from client_sdk.evaluation.leave_one_out import (
    NEGATIVES,
    FullScorer,
    candidates_of,
    evaluate_full_scores,
    evaluate_scores,
)
from client_sdk.evaluation.ratings import rating_controls, rating_errors
from protocols.errors import ParameterError

__all__ = ["Measure", "measure_of"]

Values = dict[str, float]
"""Values by the name of the metric."""
_K_ONE: Final = 10
_K_MANY: Final = 20
_CHUNK_VALUES: Final = 4_000_000


class Measure(Protocol):
    """Evaluates scores on the test interactions of some users."""

    @property
    def words(self) -> str:
        """How is measured, in words."""

    @property
    def users(self) -> int:
        """Number of users that are evaluated."""

    def values(self, scores: FullScorer) -> Values:
        """Return the metrics of scores, by name, the most important first."""

    def controls(self, rng: np.random.Generator) -> dict[str, Values]:
        """Return the metrics of what every model should exceed, by name."""


def measure_of(split: Split, *, ratings: bool, most_users: int, seed: int = 0) -> tuple[Measure, int]:
    """Return the measure that suits a split, and the number of users who have test but no training interactions.

    Those users are left out, because their devices have nothing to train on. ratings: errors of predicted ratings;
    otherwise HR and NDCG at 10 of one held-out item, or Recall and NDCG at 20 of several. most_users: of more users
    with test interactions a random choice is evaluated. Raises `DataError` without ratings, and if nobody remains.
    """
    tested = np.flatnonzero(split.test.user_degrees())
    able = tested[split.train.user_degrees()[tested] > 0]
    if not able.size:
        raise DataError("no user has both training and test interactions, so there is nothing to evaluate")
    draws = np.random.default_rng([seed, 5])
    users = np.sort(draws.choice(able, most_users, replace=False)) if able.size > most_users else able
    left_out = int(tested.size - able.size)
    if ratings:
        if split.train.ratings is None or split.test.ratings is None:
            raise DataError("this recipe learns from ratings, and the data has none")
        return _Ratings(split.train, split.test.where(np.isin(split.test.users, users)), users), left_out
    if split.one_each is None:
        return _Several(split.train, split.test, users), left_out
    chosen = np.zeros(split.train.n_users, dtype=bool)
    chosen[users] = True
    data = replace(split.one_each, test_items=np.where(chosen, split.one_each.test_items, np.int32(-1)))
    return _One(data, _negatives(data, seed)), left_out


def _negatives(data: LeaveOneOut, seed: int) -> NDArray[np.int32] | None:
    """Return 99 negatives of each user; None if somebody has not as many items left."""
    try:
        return candidates_of(data, np.random.default_rng(seed)).negatives
    except ParameterError:
        return None


def _ranking_controls(
    train: Interactions, values: Callable[[FullScorer], Values], rng: np.random.Generator
) -> dict[str, Values]:
    popularity = train.item_degrees().astype(np.float64)
    return {
        "popularity": values(lambda users: np.broadcast_to(popularity, (users.size, popularity.size))),
        "random": values(lambda users: rng.random((users.size, popularity.size))),
    }


@dataclass(frozen=True)
class _One:
    """HR@10 and NDCG@10 of one held-out item, among 99 negatives and among all items."""

    data: LeaveOneOut
    negatives: NDArray[np.int32] | None

    @property
    def users(self) -> int:
        return int(self.data.tested_users.size)

    @property
    def words(self) -> str:
        among = "" if self.negatives is None else f"{NEGATIVES} sampled items and (full) among "
        return f"one held-out item of {self.users:,} users, ranked among {among}all items they do not have"

    def values(self, scores: FullScorer) -> Values:
        found: Values = {}
        listed = None if self.negatives is None else np.column_stack([self.data.test_items, self.negatives])
        kept = np.zeros((0, 0) if listed is None else listed.shape)

        def full(users: NDArray[np.intp]) -> NDArray[np.floating]:
            made = scores(users)
            if listed is not None:
                kept[users] = np.take_along_axis(made, listed[users].astype(np.int64), axis=1)
            return made

        ranked = evaluate_full_scores(full, self.data, _K_ONE)
        if self.negatives is not None:
            sampled = evaluate_scores(lambda users, _: kept[users], self.data, self.negatives, _K_ONE)
            found |= {"HR@10": sampled.hr, "NDCG@10": sampled.ndcg}
        return found | {"HR@10 full": ranked.hr, "NDCG@10 full": ranked.ndcg}

    def controls(self, rng: np.random.Generator) -> dict[str, Values]:
        return _ranking_controls(self.data.train, self.values, rng)


@dataclass(frozen=True)
class _Several:
    """Recall@20 and NDCG@20 of any number of test items."""

    train: Interactions
    test: Interactions
    chosen: NDArray[np.intp]

    @property
    def users(self) -> int:
        return int(self.chosen.size)

    @property
    def words(self) -> str:
        return f"the test items of {self.users:,} users, ranked among all items outside their training items"

    def values(self, scores: FullScorer) -> Values:
        k = min(_K_MANY, self.train.n_items - 1)
        found = rank_all(scores, self.train, self.test, k, users=self.chosen)
        return {f"Recall@{k}": found.recall, f"NDCG@{k}": found.ndcg}

    def controls(self, rng: np.random.Generator) -> dict[str, Values]:
        return _ranking_controls(self.train, self.values, rng)


@dataclass(frozen=True)
class _Ratings:
    """MAE and RMSE of the test ratings."""

    train: Interactions
    test: Interactions
    chosen: NDArray[np.intp]

    @property
    def users(self) -> int:
        return int(self.chosen.size)

    @property
    def words(self) -> str:
        return f"{self.test.size:,} test ratings of {self.users:,} users, predicted"

    def values(self, scores: FullScorer) -> Values:
        predicted = np.zeros(self.test.size)
        step = max(1, _CHUNK_VALUES // self.train.n_items)
        for start in range(0, self.chosen.size, step):
            users = self.chosen[start : start + step]
            rows = np.flatnonzero(np.isin(self.test.users, users))
            places = np.searchsorted(users, self.test.users[rows])
            predicted[rows] = scores(users)[places, self.test.items[rows]]
        assert self.test.ratings is not None  # noqa: S101 - checked by measure_of
        found = rating_errors(predicted, self.test.ratings)
        return {"MAE": found.mae, "RMSE": found.rmse}

    def controls(self, rng: np.random.Generator) -> dict[str, Values]:  # noqa: ARG002 - means need no draws
        found = rating_controls(self.train, self.test)
        return {row.name: dict(zip(found.metrics, row.values, strict=True)) for row in found.rows}
