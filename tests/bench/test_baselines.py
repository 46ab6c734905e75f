"""The central baselines of the quality experiment, beside their definitions on a small matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.experiments.quality import BASELINES, scorer_of
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.measures import OneHeldOut

OWN = ("edlae", "slim", "bspm", "itemcf", "rp3beta", "ials")


@pytest.fixture(scope="module")
def split() -> OneHeldOut:
    data: LeaveOneOut = leave_one_out(synthetic(SyntheticConfig(users=80, items=30, positives=8, affinity=6.0)), 0)
    return OneHeldOut(data, None)


def rows_of(train: Interactions) -> np.ndarray:
    rows = np.zeros((train.n_users, train.n_items))
    rows[train.users, train.items] = 1.0
    return rows


def scores(split: OneHeldOut, name: str, **settings: Any) -> np.ndarray:
    scorer = scorer_of(name, settings, split, 0)
    assert scorer is not None
    return np.asarray(scorer(np.arange(split.data.train.n_users)))


@pytest.mark.parametrize("name", OWN)
def test_each_baseline_ranks_better_than_chance(split: OneHeldOut, name: str) -> None:
    scorer = scorer_of(name, BASELINES[name][0], split, 0)
    assert scorer is not None
    chance = split.controls(np.random.default_rng(0))["random"].values["NDCG@20 full"]
    assert split.measured(scorer).values["NDCG@20 full"] > 1.2 * chance


def test_edlae_has_more_weight_on_frequent_items(split: OneHeldOut) -> None:
    rows = rows_of(split.data.train)
    gram = rows.T @ rows
    inverse = np.linalg.inv(gram + np.diag(3.0 + 0.25 * np.diag(gram)))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    np.testing.assert_allclose(scores(split, "edlae", weight=3.0, dropout=0.2), rows @ weights, atol=1e-5)
    assert np.abs(scores(split, "edlae", weight=3.0, dropout=0.0) - scores(split, "ease", weight=3.0)).max() < 1e-6


def test_slim_is_the_least_of_its_objective(split: OneHeldOut) -> None:
    """With B >= 0 and a zero diagonal the gradient is near 0 where B is positive, and not negative elsewhere."""
    squares, sizes, rows = 3.0, 0.7, rows_of(split.data.train)
    found = np.linalg.lstsq(rows, scores(split, "slim", squares=squares, sizes=sizes), rcond=None)[0]
    assert np.abs(np.diag(found)).max() < 1e-5 < found.max() and found.min() > -1e-5
    gram, used = rows.T @ rows, found > 1e-4
    gradient = gram @ found - gram + squares * found + sizes
    assert 30 < used.sum() < 800
    assert np.abs(gradient[used]).max() < 0.1
    assert gradient[~np.eye(len(gram), dtype=bool) & ~used].min() > -0.1


def test_neighbours_are_by_shrunk_cosine_and_the_nearest_ones_alone(split: OneHeldOut) -> None:
    rows = rows_of(split.data.train)
    lengths = np.sqrt(np.maximum(rows.sum(0), 1.0))
    cosine = rows.T @ rows / (np.outer(lengths, lengths) + 10.0)
    np.fill_diagonal(cosine, 0.0)
    np.testing.assert_allclose(scores(split, "itemcf", shrink=10.0, neighbours=400), rows @ cosine, atol=1e-5)
    kept = np.where(cosine >= np.sort(cosine, axis=0)[-3], cosine, 0.0)
    np.testing.assert_allclose(scores(split, "itemcf", shrink=10.0, neighbours=3), rows @ kept, atol=1e-5)


def test_rp3beta_is_a_walk_of_three_steps(split: OneHeldOut) -> None:
    rows = rows_of(split.data.train)
    users, items = np.maximum(rows.sum(1), 1.0), np.maximum(rows.sum(0), 1.0)
    walked = (rows / items).T ** 0.6 @ (rows / users[:, None]) ** 0.6 / items**0.5
    np.fill_diagonal(walked, 0.0)
    found = scores(split, "rp3beta", alpha=0.6, beta=0.5, neighbours=400)
    np.testing.assert_allclose(found, rows @ walked, rtol=1e-5, atol=1e-6)


def test_ials_weighs_what_users_have_and_all_scores(split: OneHeldOut) -> None:
    found = scores(split, "ials", factors=8, weight=0.01, unseen=0.1)
    rows = rows_of(split.data.train)
    assert found[rows > 0].mean() > 3 * np.abs(found[rows == 0]).mean()
    loose = scores(split, "ials", factors=8, weight=0.01, unseen=0.01)
    assert loose[rows == 0].mean() > found[rows == 0].mean(), "a smaller weight lets other scores be larger"
