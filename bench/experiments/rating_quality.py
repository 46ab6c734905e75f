"""Are predicted ratings worth having? RFRec's recommended settings against means, and against a central model.

    python -m bench.experiments.rating_quality --data-dir DATA                 all sets and seeds; can be resumed
    python -m bench.experiments.rating_quality --quick --data-dir DATA         one seed
    python -m bench.experiments.rating_quality --validation --data-dir DATA    on validation rows, to choose settings

A fifth of the rating rows is predicted (`split_rows`, drawn with the seed); a validation split holds out an eighth of
the training rows. Each device predicts the ratings of its own user with the newest average. Sums are plain: masks and
encryption change them by less than 1e-6. One measurement is kept in the work folder and not repeated.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from bench._report import Figure
from bench.experiments.rows import Found, Values, means, measure_seeds
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import split_rows
from client_sdk.lab.evaluation.controls import mean_predictions, rating_errors
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import predictions
from protocols.advice import parameters_for, settings_of_ratings

# --- Generated ratings in the shape of Jester: 20,000 users, 100 items, most of them rated, from -10 to 10

_USERS: Final = 20_000
_ITEMS: Final = 100
_SCALES: Final = np.array([3.0, 2.0, 1.5, 1.0, 1.0, 0.7, 0.7, 0.5])
"""Spread of the eight factors."""


def made_jokes(users: int = _USERS) -> Interactions:
    """Return a user's and an item's deviation, the product of eight factors and noise, clipped to the scale."""
    rng = np.random.default_rng(0)
    own, items = rng.standard_normal((users, 8)) * _SCALES, rng.standard_normal((8, _ITEMS))
    means = 0.8 + 2.2 * rng.standard_normal((users, 1)) + 1.6 * rng.standard_normal((1, _ITEMS))
    ratings = means + 0.6 * own @ items + 4.0 * rng.standard_normal((users, _ITEMS))
    rated = rng.random((users, _ITEMS)) < rng.uniform(0.3, 1.0, (users, 1))
    owners, places = np.nonzero(rated)
    found = np.clip(np.round(ratings, 2), -10, 10)[rated].astype(np.float32)
    return Interactions.from_pairs(owners, places, n_users=users, n_items=_ITEMS, ratings=found)


class Rated(NamedTuple):
    """Training ratings and the ratings to predict."""

    train: Interactions
    test: Interactions
    lowest: float
    highest: float
    """`lowest` to `highest` is the range of the whole set."""


# --- A central biased matrix factorisation of ratings: what a model with all rows in one place reaches

_INITIAL_STD: Final = 0.1
_DIM: Final = 20
_SWEEPS: Final = 12
"""Solutions of either side."""
PENALTIES: Final = (0.05, 0.1, 0.15, 0.25, 0.4)
"""Weights of the squares, for each rating, to choose from on validation rows."""


def biased_mf(rated: Rated, penalty: float, seed: int) -> NDArray[np.floating]:
    """The predictions of the test ratings by a model of all training rows, clipped to the range of ratings."""
    train, test = rated.train, rated.test
    assert train.ratings is not None
    mean = float(train.ratings.mean(dtype=np.float64))
    values = train.ratings.astype(np.float64) - mean
    by_user = csr_matrix((values, train.items, train.indptr), shape=(train.n_users, train.n_items))
    by_item = by_user.T.tocsr()
    # the last column is the bias
    users = np.zeros((train.n_users, _DIM + 1))
    items = _INITIAL_STD * np.random.default_rng(seed).standard_normal((train.n_items, _DIM + 1))
    items[:, -1] = 0.0
    for _ in range(_SWEEPS):
        _solve(by_user, users, items, penalty)
        _solve(by_item, items, users, penalty)
    own, others = users[test.users], items[test.items]
    products = np.einsum("kd,kd->k", own[:, :-1], others[:, :-1])
    return np.clip(mean + own[:, -1] + others[:, -1] + products, rated.lowest, rated.highest)


def _solve(rows: csr_matrix, own: NDArray[np.float64], others: NDArray[np.float64], penalty: float) -> None:
    """Set each row of `own` to its solution, with `others` fixed. An owner without ratings keeps zeros."""
    identity = np.eye(own.shape[1])
    own[:] = 0.0
    for owner in np.flatnonzero(np.diff(rows.indptr)):
        place = slice(rows.indptr[owner], rows.indptr[owner + 1])
        features = others[rows.indices[place]]
        targets = rows.data[place] - features[:, -1]
        features[:, -1] = 1.0
        gram = features.T @ features + penalty * targets.size * identity
        own[owner] = np.linalg.solve(gram, features.T @ targets)


# ---

RATING_SETS: Final = ("filmtrust", "made-jokes", "ml-100k", "ml-1m")
NAMES: Final = ("means", "biased-mf", "rfrec")
_QUICK_USERS: Final = 500
ROUNDS: Final = 100
"""Sums after that of the ratings, as in `hushrec simulate`."""


def _measured(dataset: str, name: str, seed: int, validation: bool, quick: bool, data_dir: Path) -> Values:
    users = _QUICK_USERS if quick else None
    asked = _rated(dataset, data_dir, seed, validation, users)
    if name == "means":
        return _errors(asked, mean_predictions(asked.train, asked.test)["user and item mean"])
    if name == "rfrec":
        return _errors(asked, _federated(asked, seed))
    chosen = _rated(dataset, data_dir, seed, True, users)
    best = min(PENALTIES, key=lambda penalty: _errors(chosen, biased_mf(chosen, penalty, seed))["rmse"])
    return _errors(asked, biased_mf(asked, best, seed))


def _rated(dataset: str, data_dir: Path, seed: int, validation: bool, users: int | None) -> Rated:
    """Return training and test ratings. users: of the generated set; None for all."""
    made = () if users is None else (users,)
    whole = made_jokes(*made) if dataset == "made-jokes" else load_interactions(dataset, data_dir)
    train, test = split_rows(whole, rng=seed)
    if validation:
        train, test = split_rows(train, 1 / 8, rng=seed + 100)
    assert whole.ratings is not None
    return Rated(train, test, float(whole.ratings.min()), float(whole.ratings.max()))


def _errors(rated: Rated, predictions: NDArray[np.floating]) -> Values:
    assert rated.test.ratings is not None
    found = rating_errors(predictions, rated.test.ratings)
    return {"mae": found.mae, "rmse": found.rmse}


def _federated(rated: Rated, seed: int) -> NDArray[np.floating]:
    """Train a task with recommended parameters, all devices in every sum; each predicts its user's test ratings.

    For a user without training ratings their overall mean is predicted.
    """
    train, test = rated.train, rated.test
    given = {"items": train.n_items, "rating_min": rated.lowest, "rating_max": rated.highest, "count_sums": 1}
    parameters = parameters_for("rfrec", given) | settings_of_ratings(train.n_items, train.size)
    devices = Federation(train, "rfrec", parameters, cohort_size=train.active_users.size, seed=seed)
    list(devices.run(1 + ROUNDS))
    assert train.ratings is not None
    able = np.flatnonzero((test.user_degrees() > 0) & (train.user_degrees() > 0))
    return predictions(devices.scores, test, able, others=train.ratings.mean(dtype=np.float64))


def figures_of(found: Found) -> dict[str, Figure]:
    """Return means over the seeds, spreads, and RFRec's errors divided by the others'."""
    figures = means(found)
    for dataset in {row.partition(".")[0] for row in found}:
        for metric in ("mae", "rmse"):
            ours = figures.get(f"{dataset}.rfrec.{metric}")
            for name, word in (("means", "means"), ("biased-mf", "central")):
                theirs = figures.get(f"{dataset}.{name}.{metric}")
                if isinstance(ours, float) and isinstance(theirs, float):
                    figures[f"{dataset}.rfrec.{metric}_over_{word}"] = ours / theirs
    return figures


if __name__ == "__main__":
    sys.exit(measure_seeds(__doc__ or "", product(RATING_SETS, NAMES), _measured, figures_of))
