"""Recall and NDCG with several test items per user equal those of a simple loop; ties; splits are partitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation import full_ranking as module
from client_sdk.lab.evaluation.full_ranking import rank_all
from protocols.errors import ParameterError

USERS, ITEMS = 12, 40


def random_split(seed: int) -> tuple[Interactions, Interactions]:
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((USERS, ITEMS)) < rng.random((USERS, 1)) * 0.5)
    return hold_out_share(Interactions.from_pairs(users, items, n_users=USERS, n_items=ITEMS), 0.4, seed)


def slow(scores: np.ndarray, train: Interactions, test: Interactions, k: int) -> tuple[float, float]:
    """Rank by sorting each user's items, test items after all equal scores."""
    recalls, gains = [], []
    for user in range(USERS):
        wanted, known = set(test.positives(user).tolist()), set(train.positives(user).tolist())
        if not wanted:
            continue
        others = [item for item in range(ITEMS) if item not in known]
        ranking = sorted(others, key=lambda item: (-scores[user, item], item in wanted))
        places = [place for place, item in enumerate(ranking[:k]) if item in wanted]
        best = sum(1 / np.log2(place + 2) for place in range(min(k, len(wanted))))
        recalls.append(len(places) / len(wanted))
        gains.append(sum(1 / np.log2(place + 2) for place in places) / best)
    return float(np.mean(recalls)), float(np.mean(gains))


@given(st.integers(0, 2**31), st.sampled_from([1, 5, 20]), st.booleans(), st.sampled_from([1, 200, 32_000_000]))
@settings(deadline=None, max_examples=60)
def test_metrics_equal_those_of_a_simple_loop_with_and_without_ties(seed, k, ties, chunk) -> None:
    train, test = random_split(seed)
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (USERS, ITEMS)) if ties else rng.standard_normal((USERS, ITEMS))
    if not test.size:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_VALUES", chunk)
        result = rank_all(lambda users: scores[users].astype(np.float32), train, test, k)
    assert (result.recall, result.ndcg) == pytest.approx(slow(scores, train, test, k))
    assert (result.k, result.users) == (k, np.count_nonzero(test.user_degrees()))


def test_constant_or_nan_scores_give_zero_and_perfect_scores_one() -> None:
    train, test = random_split(4)
    for value in (0.0, np.nan, -np.inf):
        alike = np.full((USERS, ITEMS), value, np.float32)
        result = rank_all(alike.__getitem__, train, test, 5)
        assert (result.recall, result.ndcg) == (0, 0)
    answer = np.zeros((USERS, ITEMS), np.float32)
    answer[test.users, test.items] = 1
    result = rank_all(lambda users: answer[users], train, test, 20)
    assert (result.recall, result.ndcg) == (1, pytest.approx(1))


def test_wrong_shapes_and_values_are_refused() -> None:
    train, test = random_split(5)
    with pytest.raises(ParameterError, match="scores must have shape"):
        rank_all(lambda users: np.zeros((users.size, 2)), train, test)
    with pytest.raises(ParameterError, match="k must lie"):
        rank_all(lambda users: np.zeros((users.size, ITEMS)), train, test, ITEMS)
    with pytest.raises(ParameterError, match="nothing to evaluate"):
        rank_all(lambda users: np.zeros((users.size, ITEMS)), train, test, users=np.zeros(0, dtype=np.intp))
    other = Interactions.from_pairs([0], [0], n_users=2, n_items=2)
    with pytest.raises(ParameterError, match="train has"):
        rank_all(lambda users: np.zeros((users.size, ITEMS)), train, other)


@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.2, 0.5, 0.9]))
@settings(deadline=None, max_examples=30)
def test_split_is_a_partition_with_the_given_share(seed, share) -> None:
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((USERS, ITEMS)) < rng.random((USERS, 1)))
    whole = Interactions.from_pairs(users, items, ratings=items, n_users=USERS, n_items=ITEMS)
    train, test = hold_out_share(whole, share, seed)
    for user in range(USERS):
        mine, kept, held = (set(side.positives(user).tolist()) for side in (whole, train, test))
        assert kept | held == mine
        assert not kept & held
        assert len(held) == min(round(share * len(mine)), max(len(mine) - 1, 0))
    np.testing.assert_array_equal(train.ratings, train.items)
    again = hold_out_share(whole, share, seed)
    np.testing.assert_array_equal(again[1].items, test.items)
    with pytest.raises(DataError, match="share"):
        hold_out_share(whole, 1.0)
