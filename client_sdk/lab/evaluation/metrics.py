"""Metrics of rankings: leave-one-out against sampled negatives or all items, and full ranking of several test items.

Ranks among sampled negatives overestimate a model; full ranking does not. The items drawn as TRAINING negatives must
not depend on the held-out item (see `client_sdk.training.mf`): an evaluation cannot detect such a leak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions, LeaveOneOut
from client_sdk.training.evaluated import gains
from protocols.errors import ParameterError

NEGATIVES: Final = 99
CHUNK_VALUES: Final = 4_000_000  # values of the largest array of a chunk: 16 MB of float32
CHUNK_SCORES: Final = 32_000_000  # scores of a chunk of `rank_all`: 128 MB of float32

Scorer = Callable[[NDArray[np.intp], NDArray[np.int32]], NDArray[np.floating]]
"""A function `scores(users (u,), items (u, m))` that returns (u, m); higher is better."""

FullScorer = Callable[[NDArray[np.intp]], NDArray[np.floating]]
"""A function `scores(users (u,))` that returns (u, n_items); higher is better."""


@dataclass(frozen=True)
class EvaluationResult:
    """HR@k and NDCG@k, means over `users` users with a held-out item."""

    hr: float
    ndcg: float
    k: int
    users: int
    protocol: str
    """What it was ranked against: "full ranking" or "99 sampled negatives"."""
    ranks: NDArray[np.int64] = field(compare=False, repr=False)
    """Of each user's held-out item, from 1, int64 (users,)."""


class Candidates(NamedTuple):
    """Negatives of each user, int32 (n_users, n), and how many entries of the data set's file were replaced.

    Users without a held-out item have -1.
    """

    negatives: NDArray[np.int32]
    replaced: int


def sample_candidates(data: LeaveOneOut, rng: np.random.Generator, n: int = NEGATIVES) -> NDArray[np.int32]:
    """Draw `n` distinct negatives for each tested user, uniformly from the items outside its training and test items.

    Returns int32 (n_users, n), -1 for the other users. Raises `ParameterError` if a user has fewer than `n` such items.
    """
    negatives = np.full((data.train.n_users, n), -1, dtype=np.int32)
    for user in data.tested_users:
        pool = _pool(data, int(user))
        if pool.size < n:
            raise ParameterError(f"user {user} has only {pool.size} items to draw {n} negatives from; use full ranking")
        negatives[user] = rng.choice(pool, n, replace=False)
    return negatives


def candidates_of(data: LeaveOneOut, rng: np.random.Generator, n: int = NEGATIVES) -> Candidates:
    """Return the negatives of the data set's file if it has one, otherwise `n` sampled ones per user.

    An entry of the file is invalid if it is the user's held-out item (the public ML-1M file has it for 156 users), one
    of its training items, or a repetition. It is replaced by a random item outside the user's training and test items
    and other negatives, so that every held-out item is ranked against the same number of true negatives. Raises
    `ParameterError` if a user has too few items.
    """
    if data.test_negatives is None:
        return Candidates(sample_candidates(data, rng, n), 0)
    negatives = np.where(data.test_items[:, None] >= 0, data.test_negatives, np.int32(-1)).astype(np.int32)
    invalid = _invalid_negatives(data, negatives)
    for user in np.flatnonzero(invalid.any(axis=1)):
        bad = invalid[user]
        pool = np.setdiff1d(_pool(data, int(user)), negatives[user, ~bad])
        if pool.size < np.count_nonzero(bad):
            raise ParameterError(
                f"user {user} has only {pool.size} items to replace {np.count_nonzero(bad)} invalid negatives"
            )
        negatives[user, bad] = rng.choice(pool, np.count_nonzero(bad), replace=False)
    return Candidates(negatives, int(np.count_nonzero(invalid)))


def candidates_if_enough(data: LeaveOneOut, rng: np.random.Generator) -> Candidates | None:
    """Return what `candidates_of` returns; None if a user has too few items."""
    try:
        return candidates_of(data, rng)
    except ParameterError:
        return None


def _invalid_negatives(data: LeaveOneOut, negatives: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which entries of tested users are held out, in training, or repeated in the row; bool (n_users, n)."""
    train = data.train
    keys = np.arange(train.n_users)[:, None] * train.n_items + negatives
    invalid = np.isin(keys, train.users.astype(np.int64) * train.n_items + train.items)
    invalid |= negatives == data.test_items[:, None]
    order = np.argsort(negatives, axis=1, kind="stable")
    ordered = np.take_along_axis(negatives, order, axis=1)
    repeated = np.zeros_like(invalid)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return np.asarray((invalid | repeated) & (data.test_items >= 0)[:, None])


def _pool(data: LeaveOneOut, user: int) -> NDArray[np.intp]:
    """Return the items outside the user's training and test items, ascending."""
    free = np.ones(data.train.n_items, dtype=bool)
    free[data.train.positives(user)] = False
    free[data.test_items[user]] = False
    return np.flatnonzero(free)


def evaluate_scores(
    scores: Scorer,
    data: LeaveOneOut,
    negatives: NDArray[np.int32],
    k: int = 10,
    *,
    users: NDArray[np.intp] | None = None,
    width: int = 1,
) -> EvaluationResult:
    """Rank the held-out items against `negatives` by the scores of `scores`; return HR@k and NDCG@k.

    negatives: int32 (n_users, n), from `candidates_of`. users: evaluate only these. width: values that the scorer needs
    for each item, which limits the number of users in one call. The held-out item is scored in the same call as its
    negatives, so that equal items get equal scores. Raises `ParameterError` for wrong shapes and missing negatives.
    """
    tested = _tested_users(data, users)
    if negatives.shape[:1] != data.test_items.shape or negatives.ndim != 2:
        raise ParameterError(f"negatives must have {data.test_items.size} rows, got shape {negatives.shape}")
    if tested.size and negatives[tested].min(initial=0) < 0:
        raise ParameterError("a user with a held-out item has no negatives")

    def ranks(chunk: NDArray[np.intp]) -> NDArray[np.int64]:
        items = np.column_stack([data.test_items[chunk], negatives[chunk]])
        found = np.asarray(scores(chunk, items))
        if found.shape != items.shape:
            raise ParameterError(f"scores must have shape {items.shape}, got {found.shape}")
        return ranks_of(found[:, 0], found[:, 1:])

    return _result(ranks, tested, (negatives.shape[1] + 1) * width, k, f"{negatives.shape[1]} sampled negatives")


def evaluate(
    user_factors: NDArray[np.float32],
    item_factors: NDArray[np.float32],
    data: LeaveOneOut,
    candidates: NDArray[np.int32],
    k: int = 10,
) -> EvaluationResult:
    """Evaluate matrix factorisation against sampled negatives.

    user_factors: (n_users, d). item_factors: (n_items, d). candidates: int32 (n_users, n), from `candidates_of`. Raises
    `ParameterError` for wrong shapes.
    """
    _check_factors(user_factors, item_factors, data)

    def scores(users: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        return np.asarray(np.einsum("umd,ud->um", item_factors[items], user_factors[users]))

    return evaluate_scores(scores, data, candidates, k, width=item_factors.shape[1])


def evaluate_full_scores(
    scores: FullScorer, data: LeaveOneOut, k: int = 10, *, users: NDArray[np.intp] | None = None
) -> EvaluationResult:
    """Rank the held-out items among all items outside the user's training items; return HR@k and NDCG@k.

    scores: called with chunks of users. users: evaluate only these. Raises `ParameterError` for wrong shapes.
    """
    tested, train = _tested_users(data, users), data.train

    def ranks(chunk: NDArray[np.intp]) -> NDArray[np.int64]:
        # a copy, because it is written to; float64 keeps the order of float32
        found = np.array(scores(chunk), dtype=np.float64)
        if found.shape != (chunk.size, train.n_items):
            raise ParameterError(f"scores must have shape {(chunk.size, train.n_items)}, got {found.shape}")
        rows = np.arange(chunk.size)
        target = found[rows, data.test_items[chunk]]
        found[train.pairs_of(chunk)] = np.nan
        found[rows, data.test_items[chunk]] = np.nan
        return ranks_of(target, found)

    return _result(ranks, tested, train.n_items, k, "full ranking")


def evaluate_full(
    user_factors: NDArray[np.float32], item_factors: NDArray[np.float32], data: LeaveOneOut, k: int = 10
) -> EvaluationResult:
    """Evaluate matrix factorisation by full ranking: among all items outside the user's training items.

    user_factors: (n_users, d). item_factors: (n_items, d). Raises `ParameterError` for wrong shapes.
    """
    _check_factors(user_factors, item_factors, data)
    return evaluate_full_scores(lambda users: user_factors[users] @ item_factors.T, data, k)


def _tested_users(data: LeaveOneOut, users: NDArray[np.intp] | None) -> NDArray[np.intp]:
    """Return those of `users`, or of all users if None, that have a held-out item."""
    if users is None:
        return data.tested_users
    if users.size and not (users.min() >= 0 and users.max() < data.train.n_users):
        raise ParameterError(f"users must lie in 0..{data.train.n_users - 1}, got {users.min()}..{users.max()}")
    return users[data.test_items[users] >= 0]


def _check_factors(user_factors: NDArray[np.float32], item_factors: NDArray[np.float32], data: LeaveOneOut) -> None:
    users, items = (data.train.n_users, user_factors.shape[-1]), (data.train.n_items, user_factors.shape[-1])
    if user_factors.shape != users or item_factors.shape != items:
        raise ParameterError(
            f"factors must be those of {users[0]} users and {items[0]} items, got {user_factors.shape} and "
            f"{item_factors.shape}"
        )


def _result(
    ranks_of_chunk: Callable[[NDArray[np.intp]], NDArray[np.int64]],
    users: NDArray[np.intp],
    width: int,
    k: int,
    protocol: str,
) -> EvaluationResult:
    """Rank for chunks of the users that need `width` values each."""
    step = max(1, CHUNK_VALUES // width)
    found = [ranks_of_chunk(users[start : start + step]) for start in range(0, users.size, step)]
    ranks = np.concatenate([np.zeros(0, dtype=np.int64), *found])
    return EvaluationResult(hit_ratio(ranks, k), ndcg(ranks, k), k, int(ranks.size), protocol, ranks)


# --- HR@k and NDCG@k of leave-one-out ranks (He et al., WWW 2017, section 4.1) ---------------------------------------
# The held-out item ranks below all other candidates with the same score, so that a model which gives all items the same
# score gets 0, not 1. NaN is lower than any other score.


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
    return float(np.mean(gains(ranks, k)))


def _check(ranks: NDArray[np.int64], k: int) -> None:
    if k < 1:
        raise ParameterError(f"k must be at least 1, got {k}")
    if not ranks.size:
        raise ParameterError("no user has a held-out item, so there is nothing to evaluate")


# --- Recall@k and NDCG@k over all items, with any number of test items per user (the NGCF and LightGCN protocol) ------
# A user's training items are left out of the ranking, and users without a test item are left out of the means. A test
# item ranks below all other items with the same score. NaN is lower than any other score.


@dataclass(frozen=True)
class RankingResult:
    """Means over `users` users with a test item."""

    recall: float
    """Test items among the first k, divided by all test items of the user."""
    ndcg: float
    """The ideal ranking begins with min(k, test items) hits."""
    k: int
    users: int
    user_ndcg: NDArray[np.float64] = field(compare=False, repr=False)
    """NDCG@k of each of them, float64 (users,)."""


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
    step = max(1, CHUNK_SCORES // train.n_items)
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
