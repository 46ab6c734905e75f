"""Recall@k and NDCG@k against every item, with any number of test items a user (the NGCF and LightGCN protocol).

A user's training items are left out of the ranking; users without a test item are not measured. A tie never favours a
test item: it ranks below every other item of the same score. NaN is the lowest score there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions
from client_sdk.evaluation.leave_one_out import FullScorer
from protocols.errors import ParameterError

__all__ = ["RankingResult", "rank_all"]

CHUNK_VALUES: Final = 32_000_000  # scores of a chunk: 128 MB of float32


@dataclass(frozen=True)
class RankingResult:
    """Means over the users that have a test item."""

    recall: float
    """Recall@k: test items among the first k / all test items of the user."""
    ndcg: float
    """NDCG@k; the ideal ranking has min(k, test items) hits in front."""
    k: int
    users: int
    """How many users were measured."""


def rank_all(
    scores: FullScorer,
    train: Interactions,
    test: Interactions,
    k: int = 20,
    *,
    users: NDArray[np.intp] | None = None,
) -> RankingResult:
    """Rank all items outside the training items for every user with a test item, or only for those of `users`.

    `scores(users (u,)) -> (u, n_items)` is called in chunks of users. Raises `ParameterError` when train and test are
    not of the same users and items, or nobody is left to measure.
    """
    if (train.n_users, train.n_items) != (test.n_users, test.n_items):
        raise ParameterError(
            f"train has {train.n_users} users and {train.n_items} items, test {test.n_users} and {test.n_items}"
        )
    if not 1 <= k < train.n_items:
        raise ParameterError(f"k must lie in 1..{train.n_items - 1}, got {k}")
    asked = np.arange(train.n_users) if users is None else users
    tested = asked[test.user_degrees()[asked] > 0]
    if not tested.size:
        raise ParameterError("no user has a test item: there is nothing to measure")
    step = max(1, CHUNK_VALUES // train.n_items)
    recall, ndcg = np.zeros(tested.size), np.zeros(tested.size)
    for start in range(0, tested.size, step):
        chunk = slice(start, start + step)
        recall[chunk], ndcg[chunk] = _chunk_metrics(scores, train, test, tested[chunk], k)
    return RankingResult(float(recall.mean()), float(ndcg.mean()), k, int(tested.size))


def _chunk_metrics(
    scores: FullScorer, train: Interactions, test: Interactions, users: NDArray[np.intp], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Recall and NDCG of every user of a chunk."""
    found = np.array(scores(users))
    if found.shape != (users.size, train.n_items):
        raise ParameterError(f"scores of shape {(users.size, train.n_items)} were expected, got {found.shape}")
    found[np.isnan(found)] = -np.inf
    found[_pairs(train, users)] = -np.inf
    owners, items = _pairs(test, users)
    ranks = _ranks(found, owners, found[owners, items], k)
    hits = ranks <= k
    counts = np.bincount(owners, minlength=users.size)
    gains = np.where(hits, 1.0 / np.log2(ranks + 1.0), 0.0)
    ideal = np.cumsum(1.0 / np.log2(np.arange(2.0, k + 2.0)))[np.minimum(counts, k) - 1]
    recall = np.bincount(owners, weights=hits, minlength=users.size) / counts
    return recall, np.bincount(owners, weights=gains, minlength=users.size) / ideal


def _pairs(interactions: Interactions, users: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Position in `users` and item of every interaction of theirs."""
    starts, lengths = interactions.indptr[users], interactions.user_degrees()[users]
    owners = np.repeat(np.arange(users.size), lengths)
    within = np.arange(owners.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return owners, interactions.items[np.repeat(starts, lengths) + within]


def _ranks(
    found: NDArray[np.floating[Any]], owners: NDArray[np.int64], values: NDArray[np.floating[Any]], k: int
) -> NDArray[np.int64]:
    """Rank from 1 of every test item (its user in `owners`, its score in `values`); k + 1 stands for any beyond k.

    How many items score at least as high is read from the sorted best k; only a score equal to the k-th needs a look
    at the whole row. Test items that tie with each other share the last places of their tie, one each.
    """
    width = found.shape[1]
    best = np.sort(np.partition(found, width - k, axis=1)[:, width - k :], axis=1)
    last = best[:, 0]
    at_least = k - _below(best, owners, values)
    tied = values == last[owners]
    rows = np.unique(owners[tied])
    reach = np.zeros(found.shape[0], dtype=np.int64)
    reach[rows] = np.count_nonzero(found[rows] >= last[rows, None], axis=1)
    at_least = np.where(tied, reach[owners], np.where(values < last[owners], k + 1, at_least))
    order = np.lexsort((values, owners))
    whose, what = owners[order], values[order]
    first = np.ones(order.size, dtype=bool)
    first[1:] = (whose[1:] != whose[:-1]) | (what[1:] != what[:-1])
    place = np.arange(order.size)
    ranks = np.empty(order.size, dtype=np.int64)
    ranks[order] = at_least[order] - (place - np.maximum.accumulate(np.where(first, place, 0)))
    return np.asarray(np.where((values == -np.inf) | (values < last[owners]), k + 1, ranks))


def _below(
    best: NDArray[np.floating[Any]], owners: NDArray[np.int64], values: NDArray[np.floating[Any]]
) -> NDArray[np.int64]:
    """How many of the best k of its user score below every test item."""
    below = np.zeros(values.size, dtype=np.int64)
    for column in best.T:
        below += column[owners] < values
    return below
