"""Recall@k and NDCG@k over all items, with any number of test items per user (the NGCF and LightGCN protocol).

A user's training items are left out of the ranking, and users without a test item are left out of the means. A test
item ranks below all other items with the same score. NaN is lower than any other score.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.evaluation.leave_one_out import FullScorer
from client_sdk.training.evaluated import gains
from protocols.errors import ParameterError

CHUNK_VALUES: Final = 32_000_000  # scores of a chunk: 128 MB of float32


@dataclass(frozen=True)
class RankingResult:
    """Means over `users` users with a test item; user_ndcg: NDCG@k of each of them, float64 (users,).

    recall: test items among the first k, divided by all test items of the user. ndcg: the ideal ranking begins with
    min(k, test items) hits.
    """

    recall: float
    ndcg: float
    k: int
    users: int
    user_ndcg: NDArray[np.float64] = field(compare=False, repr=False)


def rank_all(
    scores: FullScorer,
    train: Interactions,
    test: Interactions,
    k: int = 20,
    *,
    users: NDArray[np.intp] | None = None,
) -> RankingResult:
    """Rank all items outside the training items for each user with a test item; return the means of Recall and NDCG.

    scores: called as `scores(users)` with chunks of users (u,), returns (u, n_items), higher is better. users: evaluate
    only these. Raises `ParameterError` if train and test differ in their numbers of users or items, if k is out of
    range, if scores have the wrong shape, or if no user has a test item.
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
        raise ParameterError("no user has a test item, so there is nothing to evaluate")
    step = max(1, CHUNK_VALUES // train.n_items)
    recall, ndcg = np.zeros(tested.size), np.zeros(tested.size)
    for start in range(0, tested.size, step):
        chunk = slice(start, start + step)
        recall[chunk], ndcg[chunk] = _chunk_metrics(scores, train, test, tested[chunk], k)
    return RankingResult(float(recall.mean()), float(ndcg.mean()), k, int(tested.size), ndcg)


def _chunk_metrics(
    scores: FullScorer, train: Interactions, test: Interactions, users: NDArray[np.intp], k: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Recall and NDCG of each of `users`, float64 (u,)."""
    found = np.array(scores(users))
    if found.shape != (users.size, train.n_items):
        raise ParameterError(f"scores must have shape {(users.size, train.n_items)}, got {found.shape}")
    found[np.isnan(found)] = -np.inf
    found[train.pairs_of(users)] = -np.inf
    owners, items = test.pairs_of(users)
    ranks = _ranks(found, owners, found[owners, items], k)
    counts = np.bincount(owners, minlength=users.size)
    ideal = np.cumsum(1.0 / np.log2(np.arange(2.0, k + 2.0)))[np.minimum(counts, k) - 1]
    recall = np.bincount(owners, weights=ranks <= k, minlength=users.size) / counts
    return recall, np.bincount(owners, weights=gains(ranks, k), minlength=users.size) / ideal


def _ranks(
    found: NDArray[np.floating[Any]], owners: NDArray[np.int64], values: NDArray[np.floating[Any]], k: int
) -> NDArray[np.int64]:
    """Return the rank from 1 of each test item, int64; k + 1 stands for any rank beyond k.

    found: scores (u, n_items). owners: row of each test item's user. values: score of each test item. The number of
    items that score at least as high is counted in the k best scores of the row. Only for a score equal to the k-th
    best the whole row is counted. Test items with equal scores take the last ranks of the tie, one each.
    """
    width = found.shape[1]
    best = np.sort(np.partition(found, width - k, axis=1)[:, width - k :], axis=1)
    kth_best = best[:, 0]
    at_least = np.full(values.size, k, dtype=np.int64)  # items of the row that score at least as high
    for column in best.T:
        at_least -= column[owners] < values
    tied = values == kth_best[owners]
    rows = np.unique(owners[tied])
    in_row = np.zeros(found.shape[0], dtype=np.int64)
    in_row[rows] = np.count_nonzero(found[rows] >= kth_best[rows, None], axis=1)
    at_least = np.where(tied, in_row[owners], np.where(values < kth_best[owners], k + 1, at_least))
    ranks = at_least - _number_ties(owners, values)
    return np.asarray(np.where((values == -np.inf) | (values < kth_best[owners]), k + 1, ranks))


def _number_ties(owners: NDArray[np.int64], values: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Number the test items of each user with equal scores from 0; return the numbers in the order of `owners`."""
    order = np.lexsort((values, owners))
    sorted_owners, sorted_values = owners[order], values[order]
    starts_tie = np.ones(order.size, dtype=bool)
    starts_tie[1:] = (sorted_owners[1:] != sorted_owners[:-1]) | (sorted_values[1:] != sorted_values[:-1])
    position = np.arange(order.size)
    numbers = np.empty(order.size, dtype=np.int64)
    numbers[order] = position - np.maximum.accumulate(np.where(starts_tie, position, 0))
    return numbers
