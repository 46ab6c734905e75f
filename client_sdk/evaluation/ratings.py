"""Errors of predicted ratings, and controls that predict means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions
from client_sdk.evaluation.control_table import ControlRow, ControlTable
from protocols.errors import ParameterError

__all__ = ["RatingErrors", "mean_predictions", "rating_controls", "rating_errors"]


@dataclass(frozen=True)
class RatingErrors:
    """Errors over all test ratings (micro-averaged: each rating counts once), on the scale of the ratings."""

    mae: float
    """Mean absolute error."""
    rmse: float
    """Root mean squared error."""
    count: int
    """Number of predicted ratings."""


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
