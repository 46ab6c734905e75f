"""HR@k and NDCG@k of leave-one-out ranks (He et al., WWW 2017, section 4.1).

The held-out item ranks below all other candidates with the same score, so that a model which gives all items the same
score gets 0, not 1. NaN is lower than any other score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["hit_ratio", "ndcg", "ranks_of"]


def ranks_of(target: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the rank of each target among its others, int64 (users,): 1 + the number that score at least as high.

    target: (users,), scores of the held-out items. others: (users, m). A target that is NaN has rank m + 1. NaN in
    `others` never counts as higher, so it can mark entries to leave out. Raises `ParameterError` for wrong shapes.
    """
    if others.ndim != 2 or target.shape != others.shape[:1]:
        raise ParameterError(f"target of shape {target.shape} does not match others of shape {others.shape}")
    above = np.count_nonzero(others >= target[:, None], axis=1)  # comparing with NaN gives False
    return np.asarray(1 + np.where(np.isnan(target), others.shape[1], above), dtype=np.int64)


def hit_ratio(ranks: NDArray[np.int64], k: int = 10) -> float:
    """Return the share of `ranks` (users,) that are at most `k`. Raises `ParameterError` without ranks or for k < 1."""
    _check(ranks, k)
    return float(np.mean(ranks <= k))


def ndcg(ranks: NDArray[np.int64], k: int = 10) -> float:
    """Return the mean of 1 / log2(rank + 1), 0 for ranks above `k`. There is one relevant item, so the ideal is 1.

    ranks: (users,). Raises `ParameterError` without ranks or for k < 1.
    """
    _check(ranks, k)
    return float(np.mean(np.where(ranks <= k, 1.0 / np.log2(ranks + 1.0), 0.0)))


def _check(ranks: NDArray[np.int64], k: int) -> None:
    if k < 1:
        raise ParameterError(f"k must be at least 1, got {k}")
    if not ranks.size:
        raise ParameterError("no user has a held-out item, so there is nothing to evaluate")
