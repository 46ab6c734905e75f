"""Controls: rankings without a model, which every model should exceed.

Popularity and random scores for rankings, means for ratings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions, LeaveOneOut
from client_sdk.lab.evaluation.metrics import (
    EvaluationResult,
    FullScorer,
    evaluate_full_scores,
    evaluate_scores,
    rank_all,
)
from protocols.errors import ParameterError


def popularity_control(data: LeaveOneOut, candidates: NDArray[np.int32], k: int = 10) -> EvaluationResult:
    """Evaluate ranking by popularity, the number of training users of an item, against `candidates`.

    candidates: int32 (n_users, n), from `candidates_of`. A tie counts against the held-out item.
    """
    degrees = data.train.item_degrees().astype(np.float64)
    return evaluate_scores(lambda _, items: degrees[items], data, candidates, k)


def controls(
    data: LeaveOneOut, candidates: NDArray[np.int32] | None, rng: np.random.Generator, k: int = 10
) -> ControlTable:
    """Return the controls popularity and random, each against `candidates`, if any, and against all items.

    candidates: int32 (n_users, n), from `candidates_of`; None where users have too few items.
    """
    scorers = control_scores(data.train, rng).items()
    rows = [control_row(name, evaluate_full_scores(scores, data, k)) for name, scores in scorers]
    if candidates is not None:
        chance = evaluate_scores(lambda _, items: rng.random(items.shape), data, candidates, k)
        rows.insert(0, control_row("popularity", popularity_control(data, candidates, k)))
        rows.insert(2, control_row("random", chance))
    return ControlTable((f"HR@{k}", f"NDCG@{k}"), tuple(rows))


def ranking_controls(
    train: Interactions,
    test: Interactions,
    rng: np.random.Generator,
    k: int = 20,
    *,
    more: Mapping[str, FullScorer] | None = None,
) -> ControlTable:
    """Return the controls popularity and random, and those of `more` by name, for splits with several test items.

    All are evaluated by full ranking.
    """
    rows = []
    for name, scores in {**control_scores(train, rng), **(more or {})}.items():
        result = rank_all(scores, train, test, k)
        rows.append(ControlRow(name, "full ranking", result.users, (result.recall, result.ndcg)))
    return ControlTable((f"Recall@{k}", f"NDCG@{k}"), tuple(rows))


def control_scores(train: Interactions, rng: np.random.Generator) -> dict[str, FullScorer]:
    """Return the scorers of the controls popularity and random, by name, the more telling first."""
    return {"popularity": popularity_scores(train), "random": random_scores(train, rng)}


def popularity_scores(train: Interactions) -> FullScorer:
    """Return a scorer by popularity: the number of training users of an item, the same for every user."""
    degrees = train.item_degrees().astype(np.float64)
    return lambda users: np.broadcast_to(degrees, (users.size, degrees.size))


def random_scores(train: Interactions, rng: np.random.Generator) -> FullScorer:
    """Return a scorer that draws every score with `rng`."""
    return lambda users: rng.random((users.size, train.n_items))


# --- the table of controls that is shown next to a result, and its figures by name -----------------------------------


@dataclass(frozen=True)
class ControlRow:
    """The values of one control under one protocol, one for each metric of the table."""

    name: str
    """Such as popularity or random."""
    against: str
    """What the test items were ranked against, in words; "" if nothing was ranked."""
    tested: int
    """Number of users, or of ratings."""
    values: tuple[float, ...]


def control_row(name: str, result: EvaluationResult) -> ControlRow:
    """Return the row of a control that was evaluated by leave-one-out."""
    return ControlRow(name, result.protocol, result.users, (result.hr, result.ndcg))


@dataclass(frozen=True)
class ControlTable:
    """Controls that were evaluated by the same metrics, for example HR@10, on the same data."""

    metrics: tuple[str, ...]
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


# --- errors of predicted ratings, and controls that predict means ----------------------------------------------------


@dataclass(frozen=True)
class RatingErrors:
    """Mean absolute and root mean squared error of `count` predicted ratings, on their scale; each counts once."""

    mae: float
    rmse: float
    count: int


def rating_errors(predictions: NDArray[np.floating], truth: NDArray[np.floating]) -> RatingErrors:
    """Return MAE and RMSE of `predictions` (k,) against `truth` (k,), summed in float64.

    Raises `ParameterError` if the shapes differ, if they are empty, or if a value is not finite.
    """
    if predictions.ndim != 1 or predictions.shape != truth.shape:
        raise ParameterError(f"predictions of shape {predictions.shape} do not match ratings of shape {truth.shape}")
    if not predictions.size:
        raise ParameterError("there are no ratings, so there is nothing to evaluate")
    errors = predictions.astype(np.float64) - truth.astype(np.float64)
    if not np.isfinite(errors).all():
        raise ParameterError(f"{np.count_nonzero(~np.isfinite(errors))} predictions or ratings are not finite")
    return RatingErrors(float(np.abs(errors).mean()), float(np.sqrt(np.mean(errors**2))), errors.size)


def mean_predictions(train: Interactions, test: Interactions) -> dict[str, NDArray[np.float64]]:
    """Return predictions of the ratings of `test` by name: "user and item mean", "item mean" and "mean".

    The first is the overall mean plus the deviations of the user's and the item's mean from it. A user or item without
    training ratings has deviation 0. Raises `ParameterError` if ratings are missing or if train and test differ in
    their numbers of users or items.
    """
    if (train.n_users, train.n_items) != (test.n_users, test.n_items):
        raise ParameterError("train and test must have the same users and items")
    if train.ratings is None or test.ratings is None or not train.size:
        raise ParameterError("training and test ratings are needed")
    overall = float(train.ratings.mean(dtype=np.float64))
    items = _deviations(train.items, train.ratings, overall, train.n_items)[test.items]
    users = _deviations(train.users, train.ratings, overall, train.n_users)[test.users]
    return {
        "user and item mean": overall + items + users,
        "item mean": overall + items,
        "mean": np.full(test.size, overall),
    }


def rating_controls(train: Interactions, test: Interactions) -> ControlTable:
    """Return the errors of `mean_predictions`; raises as it does."""
    rows = []
    for name, predicted in mean_predictions(train, test).items():
        assert test.ratings is not None  # noqa: S101 - checked by mean_predictions
        found = rating_errors(predicted, test.ratings)
        rows.append(ControlRow(name, "", found.count, (found.mae, found.rmse)))
    return ControlTable(("MAE", "RMSE"), tuple(rows))


def _deviations(
    owners: NDArray[np.int32], ratings: NDArray[np.float32], overall: float, length: int
) -> NDArray[np.float64]:
    """Return the mean rating of each owner (user or item) minus `overall`, float64 (length,); 0 without ratings."""
    counts = np.bincount(owners, minlength=length)
    sums = np.bincount(owners, weights=ratings.astype(np.float64) - overall, minlength=length)
    return np.asarray(sums / np.maximum(counts, 1))
