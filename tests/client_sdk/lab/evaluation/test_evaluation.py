"""Ranks, metrics and controls of all protocols equal those of simple loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation import metrics
from client_sdk.lab.evaluation.controls import (
    controls,
    popularity_control,
    popularity_scores,
    ranking_controls,
    rating_controls,
    rating_errors,
)
from client_sdk.lab.evaluation.metrics import (
    candidates_of,
    evaluate,
    evaluate_full,
    evaluate_full_scores,
    evaluate_scores,
    hit_ratio,
    ndcg,
    rank_all,
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
@settings(deadline=None, max_examples=20)
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
@settings(deadline=None, max_examples=15)
def test_metrics_equal_those_of_a_simple_loop_for_any_chunk_size(seed, k, chunk) -> None:
    data, (users, items) = random_data(seed), factors(seed)
    candidates = candidates_of(data, np.random.default_rng(seed)).negatives
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "CHUNK_VALUES", chunk)
        sampled, full = evaluate(users, items, data, candidates, k), evaluate_full(users, items, data, k)
    assert (sampled.hr, sampled.ndcg) == pytest.approx(slow(users, items, data, lambda user: candidates[user], k))
    outside = [
        np.setdiff1d(np.arange(ITEMS), [*data.train.positives(user), data.test_items[user]]) for user in range(USERS)
    ]
    assert (full.hr, full.ndcg) == pytest.approx(slow(users, items, data, lambda user: outside[user], k))
    assert sampled.users == full.users == np.count_nonzero(data.test_items >= 0)
    assert (sampled.protocol, full.protocol) == ("99 sampled negatives", "full ranking")
    some = evaluate_full_scores(lambda asked: users[asked] @ items.T, data, k, users=np.arange(1, USERS))
    np.testing.assert_array_equal(some.ranks, full.ranks[int(data.test_items[0] >= 0) :])


def test_wrong_shapes_are_refused() -> None:
    data, (users, items) = random_data(3), factors(3)
    candidates = candidates_of(data, np.random.default_rng(3)).negatives
    for call, what in (
        (lambda: evaluate(users, items[:-1], data, candidates), "factors"),
        (lambda: evaluate(users, items, data, candidates[:-1]), "negatives"),
        (lambda: evaluate(users, items, data, np.full_like(candidates, -1)), "no negatives"),
        (
            lambda: evaluate_scores(lambda _, asked: np.zeros(asked.shape[0]), data, candidates),
            "scores must have shape",
        ),
        (lambda: evaluate_full_scores(lambda asked: np.zeros((asked.size, 3)), data), "scores must have shape"),
        (lambda: evaluate_full_scores(lambda _: np.zeros((1, ITEMS)), data, users=np.array([USERS])), "users must lie"),
        (lambda: ranks_of(np.zeros(3), np.zeros((2, 5))), "does not match"),
        *((lambda metric=metric: metric(np.zeros(0, np.int64), 10), "no user") for metric in (hit_ratio, ndcg)),
        *((lambda metric=metric: metric(np.array([1]), 0), "k must be") for metric in (hit_ratio, ndcg)),
    ):
        with pytest.raises(ParameterError, match=what):
            call()


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


# --- full rankings with several test items per user, and splits of a share of each user's items -----------------------


FEW, SOME = 12, 40


def random_split(seed: int) -> tuple[Interactions, Interactions]:
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((FEW, SOME)) < rng.random((FEW, 1)) * 0.5)
    return hold_out_share(Interactions.from_pairs(users, items, n_users=FEW, n_items=SOME), 0.4, seed)


def slow_rank_all(scores: np.ndarray, train: Interactions, test: Interactions, k: int) -> tuple[float, float]:
    """Rank by sorting each user's items, test items after all equal scores."""
    recalls, gains = [], []
    for user in range(FEW):
        wanted, known = set(test.positives(user).tolist()), set(train.positives(user).tolist())
        if not wanted:
            continue
        others = [item for item in range(SOME) if item not in known]
        ranking = sorted(others, key=lambda item: (-scores[user, item], item in wanted))
        places = [place for place, item in enumerate(ranking[:k]) if item in wanted]
        best = sum(1 / np.log2(place + 2) for place in range(min(k, len(wanted))))
        recalls.append(len(places) / len(wanted))
        gains.append(sum(1 / np.log2(place + 2) for place in places) / best)
    return float(np.mean(recalls)), float(np.mean(gains))


@given(st.integers(0, 2**31), st.sampled_from([1, 5, 20]), st.booleans(), st.sampled_from([1, 200, 32_000_000]))
@settings(deadline=None, max_examples=25)
def test_metrics_equal_those_of_a_simple_loop_with_and_without_ties(seed, k, ties, chunk) -> None:
    train, test = random_split(seed)
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (FEW, SOME)) if ties else rng.standard_normal((FEW, SOME))
    if not test.size:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "CHUNK_SCORES", chunk)
        result = rank_all(lambda users: scores[users].astype(np.float32), train, test, k)
    assert (result.recall, result.ndcg) == pytest.approx(slow_rank_all(scores, train, test, k))
    assert (result.k, result.users) == (k, np.count_nonzero(test.user_degrees()))


def test_constant_or_nan_scores_give_zero_and_perfect_scores_one() -> None:
    train, test = random_split(4)
    for value in (0.0, np.nan, -np.inf):
        result = rank_all(np.full((FEW, SOME), value, np.float32).__getitem__, train, test, 5)
        assert (result.recall, result.ndcg) == (0, 0)
    answer = np.zeros((FEW, SOME), np.float32)
    answer[test.users, test.items] = 1
    result = rank_all(lambda users: answer[users], train, test, 20)
    assert (result.recall, result.ndcg) == (1, pytest.approx(1))


def test_wrong_scores_and_splits_are_refused() -> None:
    train, test = random_split(5)
    nobody, zeros = np.zeros(0, dtype=np.intp), np.zeros((FEW, SOME))
    other = Interactions.from_pairs([0], [0], n_users=2, n_items=2)
    for call, what in (
        (lambda: rank_all(lambda users: np.zeros((users.size, 2)), train, test), "scores must have shape"),
        (lambda: rank_all(zeros.__getitem__, train, test, SOME), "k must lie"),
        (lambda: rank_all(zeros.__getitem__, train, test, users=nobody), "nothing to evaluate"),
        (lambda: rank_all(zeros.__getitem__, train, other), "train has"),
    ):
        with pytest.raises(ParameterError, match=what):
            call()


@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.2, 0.5, 0.9]))
@settings(deadline=None, max_examples=30)
def test_split_is_a_partition_with_the_given_share(seed, share) -> None:
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((FEW, SOME)) < rng.random((FEW, 1)))
    whole = Interactions.from_pairs(users, items, ratings=items, n_users=FEW, n_items=SOME)
    train, test = hold_out_share(whole, share, seed)
    for user in range(FEW):
        mine, kept, held = (set(side.positives(user).tolist()) for side in (whole, train, test))
        assert kept | held == mine
        assert not kept & held
        assert len(held) == min(round(share * len(mine)), max(len(mine) - 1, 0))
    np.testing.assert_array_equal(train.ratings, train.items)
    np.testing.assert_array_equal(hold_out_share(whole, share, seed)[1].items, test.items)
    with pytest.raises(DataError, match="share"):
        hold_out_share(whole, 1.0)


# --- controls under all protocols, and errors of rating models --------------------------------------------------------


MANY, RANKED = 200, 150


def interactions() -> Interactions:
    rng = np.random.default_rng(3)
    users, items = np.nonzero(rng.random((MANY, RANKED)) < 0.6 / (1 + np.arange(RANKED) / 10))
    return Interactions.from_pairs(users, items, n_users=MANY, n_items=RANKED)


def test_each_control_is_evaluated_against_candidates_and_all_items() -> None:
    data = leave_one_out(interactions(), 0)
    candidates = candidates_of(data, np.random.default_rng(0)).negatives
    table = controls(data, candidates, np.random.default_rng(1), k=5)
    assert table.metrics == ("HR@5", "NDCG@5")
    assert len({(row.name, row.against) for row in table.rows}) == len(table.rows) == 4
    assert {row.tested for row in table.rows} == {data.tested_users.size}
    assert all(len(cells) == len(table.headings) for cells in table.cells)
    figures = table.figures()
    popularity = popularity_control(data, candidates, 5)
    assert figures["popularity.99_sampled_negatives.hr5"] == popularity.hr
    assert figures["popularity.99_sampled_negatives.ndcg5"] == popularity.ndcg
    assert figures["popularity.full_ranking.hr5"] == evaluate_full_scores(popularity_scores(data.train), data, 5).hr
    assert figures["popularity.full_ranking.hr5"] > figures["random.full_ranking.hr5"]


def test_ranking_controls_of_splits_with_several_test_items() -> None:
    train, test = hold_out_share(interactions(), 0.2, 0)
    table = ranking_controls(train, test, np.random.default_rng(2), 20)
    figures = table.figures()
    degrees = train.item_degrees().astype(float)
    slow = rank_all(lambda users: np.tile(degrees, (users.size, 1)), train, test, 20)
    assert figures["popularity.full_ranking.recall20"] == slow.recall
    assert figures["popularity.full_ranking.ndcg20"] == slow.ndcg
    assert figures["random.full_ranking.recall20"] < 0.25 < figures["popularity.full_ranking.recall20"]


def rated(rows, **more) -> Interactions:
    users, items, ratings = zip(*rows, strict=True)
    return Interactions.from_pairs(users, items, ratings=ratings, n_users=3, n_items=3, **more)


def test_controls_by_hand() -> None:
    train = rated([(0, 0, 5), (0, 1, 3), (1, 0, 3), (1, 1, 1)])  # mean 3; users 4, 2; items 4, 2
    found = rating_controls(train, rated([(0, 2, 4), (1, 2, 1), (2, 0, 5), (2, 2, 3)])).figures()
    assert found["mean.mae"] == pytest.approx((1 + 2 + 2 + 0) / 4)
    assert found["item_mean.mae"] == pytest.approx((1 + 2 + 1 + 0) / 4)
    assert found["user_and_item_mean.mae"] == pytest.approx((0 + 1 + 1 + 0) / 4)
    assert found["user_and_item_mean.rmse"] == pytest.approx(np.sqrt(2 / 4))


def test_invalid_predictions_and_controls_without_ratings_are_refused() -> None:
    plain = Interactions.from_pairs([0], [1], n_users=3, n_items=3)
    for call, what in (
        (lambda: rating_errors(np.array([1.0]), np.array([1.0, 2.0])), "do not match"),
        (lambda: rating_errors(np.array([]), np.array([])), "nothing to evaluate"),
        (lambda: rating_errors(np.array([np.nan, 1.0]), np.array([1.0, 1.0])), "1 predictions"),
        (lambda: rating_controls(plain, plain), "ratings"),
        (lambda: rating_controls(Interactions.from_pairs([0], [1]), plain), "same users"),
    ):
        with pytest.raises(ParameterError, match=what):
            call()
