"""HR@k and NDCG@k of leave-one-out ranks (He et al., WWW 2017, section 4.1).

A tie never favours the held-out item: it ranks below every other candidate of the same score, so that a model which
scores everything alike gets 0, not 1. NaN is the lowest score there is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["hit_ratio", "ndcg", "ranks_of"]


def ranks_of(target: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.int64]:
    """Rank from 1 of each `target` (users,) among its `others` (users, m), int64: 1 + how many score at least as high.

    A `target` that is NaN has rank m + 1, the last; NaN among the `others` is below everything but that, so it also
    marks entries that take no part. Raises `ParameterError` when the shapes do not fit.
    """
    if others.ndim != 2 or target.shape != others.shape[:1]:
        raise ParameterError(f"scores of shape {target.shape} and {others.shape} do not fit")
    above = np.count_nonzero(others >= target[:, None], axis=1)  # comparing with NaN gives False
    return np.asarray(1 + np.where(np.isnan(target), others.shape[1], above), dtype=np.int64)


def hit_ratio(ranks: NDArray[np.int64], k: int = 10) -> float:
    """Share of `ranks` (users,) that are at most `k`."""
    _check(ranks, k)
    return float(np.mean(ranks <= k))


def ndcg(ranks: NDArray[np.int64], k: int = 10) -> float:
    """Mean of 1 / log2(rank + 1) where the rank is at most `k`, 0 elsewhere; one relevant item, so the ideal is 1."""
    _check(ranks, k)
    return float(np.mean(np.where(ranks <= k, 1.0 / np.log2(ranks + 1.0), 0.0)))


def _check(ranks: NDArray[np.int64], k: int) -> None:
    if k < 1:
        raise ParameterError(f"k must be at least 1, got {k}")
    if not ranks.size:
        raise ParameterError("no user has a held-out item: there is nothing to measure")
