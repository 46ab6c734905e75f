"""What one client measures on its held-out rows."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.history import History
from client_sdk.lab.evaluation.leave_one_out import hit_ratio, ndcg, ranks_of
from client_sdk.training import client_half
from client_sdk.training.evaluated import HELD_OUT, rank_measures, rating_measures
from protocols.errors import ParameterError
from protocols.messages import Evaluation
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.registry import recipe

ITEMS = 50
TRAINED, HELD = np.array([1, 2], np.int32), np.array([5, 9], np.int32)


def draws() -> np.random.Generator:
    return np.random.default_rng(4)


def test_held_out_items_are_ranked_against_all_items_that_the_client_does_not_have() -> None:
    scores = np.random.default_rng(0).standard_normal(ITEMS)
    counts = np.random.default_rng(1).integers(0, 3, ITEMS).astype(np.float64)
    others = np.setdiff1d(np.arange(ITEMS), [1, 2, 5, 9])
    expected = []
    for values in (scores, counts):
        ranks = ranks_of(values[HELD], np.stack([values[others]] * 2))
        expected += [hit_ratio(ranks), ndcg(ranks)]
    np.testing.assert_allclose(rank_measures([scores, counts], TRAINED, HELD, None, draws()), expected)


def test_drawn_negatives_are_the_same_for_every_ranking_and_leave_out_the_clients_items() -> None:
    scores = np.zeros(ITEMS)
    scores[[1, 2]] = 9.0  # its training items would be above the held-out ones
    scores[HELD] = 1.0
    assert rank_measures([scores], TRAINED, HELD, 46, draws()).tolist() == [1.0, 1.0]
    with pytest.raises(ParameterError, match="only 46 items"):
        rank_measures([scores], TRAINED, HELD, 47, draws())
    ramp = np.arange(ITEMS, dtype=np.float64)
    one, other = np.split(rank_measures([ramp, ramp], TRAINED, HELD, 12, draws()), 2)
    np.testing.assert_array_equal(one, other)


def test_errors_of_ratings_are_in_units_of_the_range() -> None:
    rows = History(np.array([0, 1, 2], np.int32), np.array([1.0, 5.0, 3.0], np.float32))
    predicted = np.array([2.0, 9.0, np.nan])  # one off by a quarter, one clipped to 5, one not a number
    assert rating_measures(predicted, rows, 1.0, 5.0) == pytest.approx([(1 / 16 + 0 + 1) / 3, (1 / 4 + 0 + 1) / 3])
    with pytest.raises(ParameterError, match="rated items only"):
        rating_measures(predicted, History(rows.items), 1.0, 5.0)


def test_a_share_of_the_rows_is_the_last_of_them() -> None:
    made = with_evaluation(recipe("fedmf", {"items": ITEMS, "dim": 3}), Evaluation(every=1, holdout=0.4), 10)
    half, spec = client_half(made), made.round_spec(bytes(32), 2)  # the first sum measures
    start = half.initial_client_state(draws())
    history = History.of([7, 3, 8, 1, 4, 2], ITEMS)
    local = half.contribute(spec, "c", made.initial_state(bytes(32)), history, start, draws())
    assert local.client_state[HELD_OUT].tolist() == [4, 2]
    touched = local.blocks[0][: 3 * ITEMS].reshape(ITEMS, 3).any(axis=1)
    assert touched[[7, 3, 8, 1]].all()
    assert local.samples == 4 * 5


def test_measurements_of_a_client_rank_against_the_same_negatives() -> None:
    made = with_evaluation(recipe("fedmf", {"items": ITEMS, "dim": 3}), Evaluation(every=1, negatives=11), 10)
    half, history = client_half(made), History.of([7, 3, 8], ITEMS)
    state = made.initial_state(bytes(32))
    training, spec = made.round_spec(bytes(32), 2), made.round_spec(bytes(32), 3)
    kept = half.contribute(training, "c", state, history, half.initial_client_state(draws()), draws()).client_state
    found = {
        tuple(half.contribute(spec, "c", state, history, kept, np.random.default_rng(seed)).blocks[0][-2:])
        for seed in range(8)
    }
    assert len(found) == 1
