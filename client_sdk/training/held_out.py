"""How well one client's scores predict its own held-out rows: the values that federated evaluation sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from protocols.errors import ParameterError

__all__ = ["rank_measures", "rating_measures"]

CUT: Final = 10
"""Length of the list in which a held-out item is a hit."""


def rank_measures(
    rankings: Sequence[NDArray[np.floating]],
    trained: NDArray[np.int32],
    held_out: NDArray[np.int32],
    negatives: int | None,
    draws: np.random.Generator,
) -> NDArray[np.float64]:
    """Return HR@10 and NDCG@10 of each ranking, float64 (2 * rankings,), means over the held-out items.

    rankings: scores of all items, each (items,). trained, held_out: the client's items. negatives: how many items
    outside both a held-out item is ranked against, drawn with `draws` once for all; None for all of them. A held-out
    item ranks below other items with the same score. Raises `ParameterError` if fewer than `negatives` items are left.
    """
    free = np.ones(rankings[0].size, dtype=bool)
    free[trained] = free[held_out] = False
    others = np.flatnonzero(free)
    if negatives is not None:
        if others.size < negatives:
            raise ParameterError(f"only {others.size} items are left to draw {negatives} negatives from")
        others = draws.choice(others, negatives, replace=False)
    return np.concatenate([_hits(scores[held_out], scores[others]) for scores in rankings])


def _hits(targets: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return HR@10 and NDCG@10 of targets (k,) among others (m,), float64 (2,). A target that is NaN is no hit.

    The same definitions as in `client_sdk.evaluation.metrics`, which imports this folder.
    """
    ranks = 1 + np.count_nonzero(~(others < targets[:, None]), axis=1)
    hits = ranks <= CUT
    return np.array([np.mean(hits), np.mean(hits / np.log2(ranks + 1.0))])


def rating_measures(
    predicted: NDArray[np.floating], held_out: History, lowest: float, highest: float
) -> NDArray[np.float64]:
    """Return the mean squared and the mean absolute error of the held-out rows, float64 (2,), in units of the range.

    predicted: a rating of each item, (items,); values outside lowest..highest are moved to the nearest bound, and a
    prediction that is not a number counts as an error of the whole range. Raises `ParameterError` without ratings.
    """
    if held_out.ratings is None:
        raise ParameterError("errors of ratings can be measured on rated items only")
    bounded = np.clip(predicted[held_out.items].astype(np.float64), lowest, highest)
    errors = np.nan_to_num(np.abs(bounded - held_out.ratings) / (highest - lowest), nan=1.0)
    return np.array([np.mean(errors**2), np.mean(errors)])
