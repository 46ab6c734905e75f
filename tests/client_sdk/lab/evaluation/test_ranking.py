"""Ranks and metrics equal those of simple loops: leave-one-out, and full rankings with several test items."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.evaluation import leave_one_out as module
from client_sdk.lab.evaluation.leave_one_out import (
    candidates_of,
    evaluate,
    evaluate_full,
    evaluate_full_scores,
    evaluate_scores,
    hit_ratio,
    ndcg,
    ranks_of,
)
from protocols.errors import ParameterError

USERS, ITEMS = 30, 140


def random_data(seed: int, users: int = USERS, items: int = ITEMS) -> LeaveOneOut:
    """Users with 0 to 20 items each; some have no held-out item."""
    rng = np.random.default_rng(seed)
    lists = [rng.choice(items, rng.integers(0, 20), replace=False) for _ in range(users)]
    who = np.repeat(np.arange(users), [len(mine) for mine in lists])
    return leave_one_out(Interactions.from_pairs(who, np.concatenate(lists), n_users=users, n_items=items), seed)


def factors(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    # small integers give exact scores and many ties
    return rng.integers(-2, 3, (USERS, 4)).astype(np.float32), rng.integers(-2, 3, (ITEMS, 4)).astype(np.float32)


def slow(users, items, data, candidates, k: int) -> tuple[float, float]:
    hits, gains = [], []
    for user, held in enumerate(data.test_items):
        if held < 0:
            continue
        target = float(users[user] @ items[held])
        rank = sum(float(users[user] @ items[item]) >= target for item in candidates(user))
        hits.append(rank < k)
        gains.append(1 / np.log2(rank + 2) if rank < k else 0.0)
    return float(np.mean(hits)), float(np.mean(gains))


def check_candidates(data: LeaveOneOut, candidates: np.ndarray) -> None:
    for user in range(data.train.n_users):
        row = candidates[user].tolist()
        if data.test_items[user] < 0:
            assert set(row) == {-1}
        else:
            assert len(set(row)) == len(row)
            assert not set(row) & {*data.train.positives(user).tolist(), int(data.test_items[user])}
            assert min(row) >= 0
            assert max(row) < data.train.n_items


@given(st.integers(0, 2**31))
@settings(deadline=None)
def test_sampled_candidates_are_distinct_and_outside_the_users_items(seed) -> None:
    data = random_data(seed)
    candidates, replaced = candidates_of(data, np.random.default_rng(seed))
    assert (candidates.shape, candidates.dtype, replaced) == ((USERS, 99), np.int32, 0)
    check_candidates(data, candidates)


def test_candidates_are_drawn_uniformly() -> None:
    train = Interactions.from_pairs(np.zeros(10, int), np.arange(10), n_users=1, n_items=130)
    data = LeaveOneOut(train, np.array([10], dtype=np.int32))
    rng = np.random.default_rng(5)
    counts = np.zeros(130, dtype=np.int64)
    for _ in range(400):
        counts[candidates_of(data, rng).negatives[0]] += 1
    assert counts[:11].sum() == 0
    expected = 400 * 99 / 119  # standard deviation about 7.5
    assert np.all(np.abs(counts[11:] - expected) < 45)


def test_valid_negatives_are_kept_and_invalid_ones_replaced_and_counted() -> None:
    train = Interactions.from_pairs([0, 0, 1, 2], [3, 7, 3, 1], n_users=4, n_items=20)
    held = np.array([5, 6, -1, 7], dtype=np.int32)
    given_rows = np.array([[1, 5, 1, 3, 2], [9, 8, 5, 3, 0], [1, 1, 1, 1, 1], [0, 1, 2, 3, 4]], dtype=np.int32)
    data = LeaveOneOut(train, held, given_rows)
    candidates, replaced = candidates_of(data, np.random.default_rng(0))
    assert replaced == 4  # user 0: held-out 5, the second 1, training 3; user 1: training 3
    check_candidates(data, candidates)
    assert candidates[0, [0, 4]].tolist() == [1, 2]
    assert candidates[1, [0, 1, 2, 4]].tolist() == [9, 8, 5, 0]
    assert candidates[3].tolist() == [0, 1, 2, 3, 4]
    assert data.test_negatives.tolist() == given_rows.tolist()


def test_too_few_items_is_an_error() -> None:
    train = Interactions.from_pairs([0], [0], n_users=1, n_items=100)
    data = LeaveOneOut(train, np.array([1], dtype=np.int32))
    with pytest.raises(ParameterError, match="user 0 has only 98 items to draw 99 negatives"):
        candidates_of(data, np.random.default_rng(0))


@given(st.integers(0, 2**31), st.sampled_from([1, 10]), st.sampled_from([1, 1000, 4_000_000]))
@settings(deadline=None)
def test_metrics_equal_those_of_a_simple_loop_for_any_chunk_size(seed, k, chunk) -> None:
    data, (users, items) = random_data(seed), factors(seed)
    candidates = candidates_of(data, np.random.default_rng(seed)).negatives
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_VALUES", chunk)
        sampled, full = evaluate(users, items, data, candidates, k), evaluate_full(users, items, data, k)
    assert (sampled.hr, sampled.ndcg) == pytest.approx(slow(users, items, data, lambda user: candidates[user], k))
    outside = [
        np.setdiff1d(np.arange(ITEMS), [*data.train.positives(user), data.test_items[user]]) for user in range(USERS)
    ]
    assert (full.hr, full.ndcg) == pytest.approx(slow(users, items, data, lambda user: outside[user], k))
    assert sampled.users == full.users == np.count_nonzero(data.test_items >= 0)
    assert (sampled.protocol, full.protocol) == ("99 sampled negatives", "full ranking")


def test_perfect_scores_give_one_for_the_requested_users() -> None:
    data = random_data(2)
    candidates = candidates_of(data, np.random.default_rng(2)).negatives
    tested = np.flatnonzero(data.test_items >= 0)
    asked = np.concatenate([tested[:3], np.flatnonzero(data.test_items < 0)])
    result = evaluate_scores(
        lambda users, items: items == data.test_items[users, None], data, candidates, 1, users=asked
    )
    assert (result.hr, result.ndcg, result.users) == (1, 1, 3)
    full = evaluate_full_scores(lambda users: np.arange(ITEMS) == data.test_items[users, None], data, 1, users=asked)
    assert (full.hr, full.users) == (1, 3)
    with pytest.raises(ParameterError, match="users must lie"):
        evaluate_full_scores(lambda users: np.zeros((users.size, ITEMS)), data, users=np.array([USERS]))


def test_wrong_shapes_are_refused() -> None:
    data, (users, items) = random_data(3), factors(3)
    candidates = candidates_of(data, np.random.default_rng(3)).negatives
    with pytest.raises(ParameterError, match="factors"):
        evaluate(users, items[:-1], data, candidates)
    with pytest.raises(ParameterError, match="negatives"):
        evaluate(users, items, data, candidates[:-1])
    with pytest.raises(ParameterError, match="no negatives"):
        evaluate(users, items, data, np.full_like(candidates, -1))
    with pytest.raises(ParameterError, match="scores must have shape"):
        evaluate_scores(lambda _, asked: np.zeros(asked.shape[0]), data, candidates)
    with pytest.raises(ParameterError, match="scores must have shape"):
        evaluate_full_scores(lambda asked: np.zeros((asked.size, 3)), data)


SCORES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf, np.nan])


def slow_rank(target: float, others: list[float]) -> int:
    """Rank by sorting, with NaN lowest and the held-out item after all equal scores."""
    order = sorted([(math.isnan(x), 0 if math.isnan(x) else -x, 0) for x in others])
    order.append((math.isnan(target), 0 if math.isnan(target) else -target, 1))
    return sorted(order).index(order[-1]) + 1


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=SCORES))
@settings(deadline=None)
def test_ranks_equal_those_of_sorting(scores) -> None:
    ranks = ranks_of(scores[:, 0], scores[:, 1:])
    assert ranks.tolist() == [slow_rank(row[0], row[1:].tolist()) for row in scores]


def test_empty_input_is_an_error() -> None:
    for metric in (hit_ratio, ndcg):
        with pytest.raises(ParameterError, match="no user"):
            metric(np.zeros(0, dtype=np.int64), 10)
        with pytest.raises(ParameterError, match="k must be"):
            metric(np.array([1]), 0)
    with pytest.raises(ParameterError, match="does not match"):
        ranks_of(np.zeros(3), np.zeros((2, 5)))
