"""Controls under all protocols, also on the published data, and rating errors of models that predict means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.experiments.leaks import (
    NegativeDraws,
    drawn_as_negative_control,
    hold_out_introduced_last,
    paper_protocol,
    users_with_at_least,
)
from client_sdk.lab.data import load_dataset, load_interactions
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.evaluation import sample_candidates
from client_sdk.lab.evaluation.controls import (
    controls,
    popularity_control,
    popularity_full_control,
    random_full_control,
    ranking_controls,
    rating_controls,
    rating_errors,
)
from client_sdk.lab.evaluation.full_ranking import rank_all
from client_sdk.lab.evaluation.leave_one_out import candidates_of
from protocols.errors import ParameterError

USERS, ITEMS = 200, 150


def interactions() -> Interactions:
    """Interactions in which items with low numbers are popular."""
    rng = np.random.default_rng(3)
    users, items = np.nonzero(rng.random((USERS, ITEMS)) < 0.6 / (1 + np.arange(ITEMS) / 10))
    return Interactions.from_pairs(users, items, n_users=USERS, n_items=ITEMS)


@pytest.fixture(scope="module")
def data() -> LeaveOneOut:
    return leave_one_out(interactions(), 0)


@pytest.fixture(scope="module")
def candidates(data: LeaveOneOut) -> np.ndarray:
    return candidates_of(data, np.random.default_rng(0)).negatives


def test_each_control_is_evaluated_against_candidates_and_all_items(data, candidates) -> None:
    table = controls(data, candidates, np.random.default_rng(1), k=5)
    assert table.metrics == ("HR@5", "NDCG@5")
    assert len({(row.name, row.against) for row in table.rows}) == len(table.rows) == 4
    assert {row.tested for row in table.rows} == {data.tested_users.size}
    assert all(len(cells) == len(table.headings) for cells in table.cells)
    figures = table.figures()
    popularity = popularity_control(data, candidates, 5)
    assert figures["popularity.99_sampled_negatives.hr5"] == popularity.hr
    assert figures["popularity.99_sampled_negatives.ndcg5"] == popularity.ndcg
    assert figures["popularity.full_ranking.hr5"] == popularity_full_control(data, 5).hr
    assert figures["popularity.full_ranking.hr5"] > figures["random.full_ranking.hr5"]


def test_random_full_control_hits_by_chance(data) -> None:
    found = random_full_control(data, np.random.default_rng(0))
    assert 0.02 < found.hr < 0.15  # 10 of about 130 items


def test_ranking_controls_of_splits_with_several_test_items() -> None:
    train, test = hold_out_share(interactions(), 0.2, 0)
    table = ranking_controls(train, test, np.random.default_rng(2), 20, users=np.arange(0, USERS, 2))
    figures = table.figures()
    degrees = train.item_degrees().astype(float)
    slow = rank_all(lambda users: np.tile(degrees, (users.size, 1)), train, test, 20, users=np.arange(0, USERS, 2))
    assert figures["popularity.full_ranking.recall20"] == slow.recall
    assert figures["popularity.full_ranking.ndcg20"] == slow.ndcg
    assert figures["random.full_ranking.recall20"] < 0.25 < figures["popularity.full_ranking.recall20"]


@pytest.fixture(scope="module")
def ml_100k(published_data) -> LeaveOneOut:
    return load_dataset("ml-100k", published_data)


@pytest.mark.parametrize(
    ("rounds", "hr", "ndcg"),
    [(10, 0.456, 0.275), (20, 0.635, 0.455), (100, 0.998, 0.903)],  # means of five seeds; PFedCLR: 0.9989 / 0.9225
)
def test_on_ml_100k_by_round(ml_100k: LeaveOneOut, rounds: int, hr: float, ndcg: float) -> None:
    candidates = sample_candidates(ml_100k, np.random.default_rng(0))
    draws, excluded = NegativeDraws(rounds), paper_protocol(ml_100k)
    leaky = drawn_as_negative_control(ml_100k, candidates, np.random.default_rng(1), draws=draws, excluded=excluded)
    assert leaky.sampled.hr == pytest.approx(hr, abs=0.04)  # deviation up to 0.016
    assert leaky.sampled.ndcg == pytest.approx(ndcg, abs=0.03)
    clean = drawn_as_negative_control(ml_100k, candidates, np.random.default_rng(1), draws=draws)
    assert clean.sampled.hr < 0.14


def test_on_filmtrust(published_data) -> None:
    whole = users_with_at_least(load_interactions("filmtrust", published_data), 10)
    data = hold_out_introduced_last(whole)
    candidates = sample_candidates(data, np.random.default_rng(0))
    excluded = paper_protocol(data)
    leaky = drawn_as_negative_control(data, candidates, np.random.default_rng(1), excluded=excluded)
    assert leaky.sampled.hr == pytest.approx(0.80, abs=0.04)
    assert leaky.sampled.ndcg == pytest.approx(0.59, abs=0.03)


VALUES = st.lists(st.tuples(st.floats(-10, 10, width=32), st.floats(-10, 10, width=32)), min_size=1, max_size=50)


@given(VALUES)
def test_errors_equal_those_of_a_simple_loop(pairs) -> None:
    predicted, truth = np.array(pairs, dtype=np.float32).T
    found = rating_errors(predicted, truth)
    assert found.mae == pytest.approx(sum(abs(a - b) for a, b in pairs) / len(pairs))
    assert found.rmse == pytest.approx((sum((a - b) ** 2 for a, b in pairs) / len(pairs)) ** 0.5)
    assert found.count == len(pairs)
    assert found.mae <= found.rmse * (1 + 1e-9)


@pytest.mark.parametrize(
    ("predicted", "truth", "what"),
    [
        ([1.0], [1.0, 2.0], "do not match"),
        ([], [], "nothing to evaluate"),
        ([np.nan, 1.0], [1.0, 1.0], "1 predictions"),
    ],
)
def test_invalid_predictions_are_refused(predicted, truth, what) -> None:
    with pytest.raises(ParameterError, match=what):
        rating_errors(np.array(predicted), np.array(truth))


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


def test_controls_need_ratings() -> None:
    plain = Interactions.from_pairs([0], [1], n_users=3, n_items=3)
    with pytest.raises(ParameterError, match="ratings"):
        rating_controls(plain, plain)
    with pytest.raises(ParameterError, match="same users"):
        rating_controls(Interactions.from_pairs([0], [1]), plain)
