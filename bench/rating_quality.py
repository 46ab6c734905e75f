"""Are predicted ratings worth having? RFRec's recommended settings against means, and against a central model.

    python -m bench.rating_quality --data-dir DATA                 all sets and seeds; can be interrupted and resumed
    python -m bench.rating_quality --quick --data-dir DATA         one seed
    python -m bench.rating_quality --validation --data-dir DATA    on validation rows, to choose settings

A fifth of the rating rows is predicted (`split_rows`, drawn with the seed); a validation split holds out an eighth of
the training rows. Each device predicts the ratings of its own user with the newest average. Sums are plain: masks and
encryption change them by less than 1e-6. One measurement is kept in the work folder and not repeated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure
from bench.quality_parts.biased_mf import CHOICES, BiasedMF, MFSettings
from bench.quality_parts.made_jokes import made_jokes
from bench.quality_parts.rows import Found, Values, means, measure_rows
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import split_rows
from client_sdk.lab.evaluation.controls import RatingErrors, rating_controls, rating_errors
from client_sdk.lab.federation import Federation
from protocols.advice import parameters_for, settings_of_ratings

__all__ = ["RATING_SETS", "figures_of", "main"]

RATING_SETS: Final = ("filmtrust", "made-jokes", "ml-100k", "ml-1m")
NAMES: Final = ("means", "biased-mf", "rfrec")
_QUICK_USERS: Final = 500
_CHUNK_VALUES: Final = 16_000_000
ROUNDS: Final = 100
"""Sums after that of the ratings, as in `hushrec simulate`."""


class Rated(NamedTuple):
    """Training ratings and the ratings to predict. lowest, highest: the range of the whole set."""

    train: Interactions
    test: Interactions
    lowest: float
    highest: float


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked and print the figures; see `measure_rows`."""
    rows = [f"{dataset}.{name}" for dataset in RATING_SETS for name in NAMES]
    return measure_rows(arguments, __doc__ or "", rows, _measured, figures_of)


def _measured(options: argparse.Namespace, row: str, seed: int, tick: Callable[[int], object]) -> Values:
    """Return MAE and RMSE."""
    dataset, _, name = row.partition(".")
    users = _QUICK_USERS if options.quick else None
    asked = _rated(dataset, options.data_dir, seed, options.validation, users)
    if name == "means":
        table = {control.name: control.values for control in rating_controls(asked.train, asked.test).rows}
        mae, rmse = table["user and item mean"]
        return {"mae": mae, "rmse": rmse}
    if name == "rfrec":
        return _values(_federated(asked, seed, tick))
    chosen = _rated(dataset, options.data_dir, seed, True, users)
    best = min(CHOICES, key=lambda settings: _central(chosen, settings, seed).rmse)
    return _values(_central(asked, best, seed))


def _rated(dataset: str, data_dir: Path, seed: int, validation: bool, users: int | None) -> Rated:
    """Return training and test ratings. users: of the generated set; None for all."""
    made = () if users is None else (users,)
    whole = made_jokes(*made) if dataset == "made-jokes" else load_interactions(dataset, data_dir)
    train, test = split_rows(whole, rng=seed)
    if validation:
        train, test = split_rows(train, 1 / 8, rng=seed + 100)
    assert whole.ratings is not None
    return Rated(train, test, float(whole.ratings.min()), float(whole.ratings.max()))


def _values(found: RatingErrors) -> Values:
    return {"mae": found.mae, "rmse": found.rmse}


def _central(rated: Rated, settings: MFSettings, seed: int) -> RatingErrors:
    model, test = BiasedMF(rated.train, settings, seed), rated.test
    assert test.ratings is not None
    return rating_errors(np.clip(model.predictions(test.users, test.items), rated.lowest, rated.highest), test.ratings)


def _federated(rated: Rated, seed: int, tick: Callable[[int], object]) -> RatingErrors:
    """Train a task with recommended parameters, all devices in every sum; each predicts its user's test ratings."""
    train, test = rated.train, rated.test
    given = {"items": train.n_items, "rating_min": rated.lowest, "rating_max": rated.highest, "count_sums": 1}
    parameters = parameters_for("rfrec", given) | settings_of_ratings(train.n_items, train.size)
    devices = Federation(train, "rfrec", parameters, cohort_size=int(np.count_nonzero(train.user_degrees())), seed=seed)
    for number, _ in enumerate(devices.run(1 + ROUNDS)):
        tick(number)
    assert test.ratings is not None
    return rating_errors(_predicted(devices, train, test), test.ratings)


def _predicted(devices: Federation, train: Interactions, test: Interactions) -> NDArray[np.float64]:
    """Return the predicted ratings of the test rows; the mean of all training ratings for users without any."""
    assert train.ratings is not None
    found = np.full(test.size, train.ratings.mean(dtype=np.float64))
    able = np.flatnonzero((test.user_degrees() > 0) & (train.user_degrees() > 0))
    step = max(1, _CHUNK_VALUES // train.n_items)
    for start in range(0, able.size, step):
        users = able[start : start + step]
        rows = np.flatnonzero(np.isin(test.users, users))
        found[rows] = devices.scores(users)[np.searchsorted(users, test.users[rows]), test.items[rows]]
    return found


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
    sys.exit(main())
