"""The client side of RFRec and RFRecF: gradients against finite differences, missed rounds, and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.history import History
from client_sdk.training import client_side
from client_sdk.training.adam import Adam
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.mf import MFConfig
from client_sdk.training.rfrec import (
    AVERAGE,
    OWN_ITEMS,
    SUM_INDEX,
    LocalModel,
    Ratings,
    RFRecSide,
    predicted_ratings,
    scaled_ratings,
)
from protocols.errors import ParameterError
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import RFRec, RFRecState
from protocols.recipes.rfrec_parameters import LocalRule, RFRecParameters
from tests.support.measured import slopes

SEED = bytes(range(32))
ITEMS, DIM = 9, 3
HISTORY = History(np.array([7, 2, 4], np.int32), np.array([5.0, 1.0, 3.5], np.float32))
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("rfrec", {}),
    ("rfrec", {"variant": "released"}),
    ("rfrecf", {"iterations": 100}),
    ("rfrecf", {"iterations": 100, "moves": "coin"}),
    ("rfrecf", {"iterations": 100, "variant": "released", "probability": 0.5}),
]


def make(name: str, **changes: Any) -> tuple[RFRec, RFRecSide]:
    made = recipe(name, {"items": ITEMS, "dim": DIM, "variant": "paper", **changes})
    return made, client_side(made)


def states(made: RFRec, count: int) -> list[RFRecState]:
    """Random averages after 0, 1, ... sums."""
    first = made.initial_state(SEED)
    rng = np.random.default_rng(5)
    drawn = [rng.normal(0, 0.3, (ITEMS, DIM)).astype(np.float32) for _ in range(count)]
    return [first, *(replace(first, round_number=k, sum_index=k, item_factors=f) for k, f in enumerate(drawn, start=1))]


def objective(
    users: np.ndarray, items: np.ndarray, average: np.ndarray, ratings: Ratings, rule: LocalRule, penalty: float
) -> float:
    """The local loss in float64: eq. 5 of the paper, or that of the released code."""
    total = 0.0
    for user, item, target in zip(ratings.users, ratings.items, ratings.targets, strict=True):
        product = users[user] @ items[item]
        total += (float(target) - (1 / (1 + np.exp(-product)) if rule.released else product)) ** 2
    total += 0.1 * (np.sqrt(np.sum(users**2)) if rule.by_norm else np.sum(users**2))
    return float(total + penalty * np.sum((items - average) ** 2))


@pytest.mark.parametrize(
    ("name", "changes", "penalty"),
    [
        ("rfrec", {}, 10 / 2),
        ("rfrec", {"variant": "released"}, 10),
        ("rfrecf", {}, 0),
        ("rfrecf", {"variant": "released"}, 0),
        ("rfrecf", {"variant": "released", "user_norm": "squared"}, 0),
    ],
)
def test_gradients_equal_those_of_the_objective(name: str, changes: dict[str, Any], penalty: float) -> None:
    made, _ = make(name, **changes)
    rng = np.random.default_rng(3)
    users, items, average = (rng.normal(0, 0.5, (n, DIM)).astype(np.float32) for n in (2, ITEMS, ITEMS))
    rated = np.array([1, 4, 4, 8], np.int32)
    ratings = Ratings.of(
        np.array([0, 0, 1, 1]), rated, np.array([1, 3, 5, 2], np.float32), made.parameters, 2
    )  # both users rated item 4
    rule = made.parameters.rule
    of_users, of_rows, _ = LocalModel(users, items).gradients(ratings, rule)
    of_items = rule.pull * (items - average)
    of_items[ratings.rated] += of_rows
    x = np.concatenate([users, items]).astype(np.float64)
    numeric = slopes(lambda: objective(x[:2], x[2:], average, ratings, rule, penalty), x, 1e-5)
    np.testing.assert_allclose(np.concatenate([of_users, of_items]), numeric, rtol=1e-3, atol=1e-4)


def test_step_and_move_equal_values_computed_by_hand() -> None:
    made, _ = make("rfrec", penalty=2.0, learning_rate=0.1)
    user, items, average = np.array([[1.0, 0, 0]], np.float32), np.ones((ITEMS, DIM), np.float32), np.zeros(3)
    model = LocalModel(user.copy(), items.copy())
    ratings = Ratings.of(np.zeros(1, np.intp), np.array([4], np.int32), np.array([5.0], np.float32), made.parameters)
    loss = model.train(ratings, np.broadcast_to(average.astype(np.float32), items.shape), made.parameters.rule)
    assert loss == 0.0  # rating 5 is 1, and u.v is 1
    np.testing.assert_allclose(model.users, [[0.98, 0, 0]], atol=1e-6)  # decay only
    np.testing.assert_allclose(model.items, 0.8, atol=1e-6)  # pull only
    model.move(np.zeros((ITEMS, DIM), np.float32), replace(made.parameters.rule, move=0.5), 3)
    np.testing.assert_allclose(model.items, 0.1, atol=1e-6)


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_missed_steps_are_taken_later_with_the_known_average(name: str, changes: dict[str, Any]) -> None:
    """A client that takes part in sums 1 and 5 equals one that trains in every round."""
    made, side = make(name, **changes)
    found = states(made, 5)
    client_state = side.initial_client_state(np.random.default_rng(0))
    for step in (1, 5):
        late = side.contribute(
            made.round_spec(SEED, step), "c", found[step - 1], HISTORY, client_state, np.random.default_rng(0)
        )
        client_state = late.client_state
    first = side.initial_client_state(np.random.default_rng(0))
    model = LocalModel(first[USER_FACTOR][None].copy(), found[0].item_factors.copy())
    rule = made.parameters.rule
    if rule.released:
        model.adam = Adam([model.users, model.items], [rule.rate] * 2)
    ratings = Ratings.of(np.zeros(3, np.intp), HISTORY.items, HISTORY.ratings, made.parameters)
    for step in range(1, 6):
        known = found[0] if step < 5 else found[4]
        if step > 1:
            model.move(known.item_factors, rule, made.stretch(found[0], step - 1).moves)
        for _ in range(made.stretch(found[0], step).local):
            model.train(ratings, known.item_factors, rule)
    np.testing.assert_allclose(client_state[OWN_ITEMS], model.items, atol=1e-6)
    np.testing.assert_allclose(client_state[USER_FACTOR], model.users[0], atol=1e-6)
    np.testing.assert_allclose(late.blocks[0], (model.items - found[4].item_factors).ravel(), atol=1e-6)
    np.testing.assert_array_equal(client_state[AVERAGE], found[4].item_factors)
    assert client_state[SUM_INDEX].tolist() == [5]


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_predictions_take_missed_steps_without_keeping_them(name: str, changes: dict[str, Any]) -> None:
    made, side = make(name, **changes)
    found = states(made, 4)
    rng = np.random.default_rng(0)
    client_state = side.contribute(
        made.round_spec(SEED, 1), "c", found[0], HISTORY, side.initial_client_state(rng), rng
    ).client_state
    kept = {key: value.copy() for key, value in client_state.items()}
    scores = side.scores(found[4], client_state, HISTORY)
    for key, value in kept.items():
        np.testing.assert_array_equal(client_state[key], value)
    # A client that takes part in sums 2 to 4 with the same average has the same user factor.
    for step in (2, 3, 4):
        stale = replace(found[step - 1], item_factors=found[0].item_factors)
        client_state = side.contribute(made.round_spec(SEED, step), "c", stale, HISTORY, client_state, rng).client_state
    expected = predicted_ratings(found[4].item_factors @ client_state[USER_FACTOR], made.parameters)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    initial = side.initial_client_state(np.random.default_rng(0))
    prepared = side.prepare(made.round_spec(SEED, 5), found[4], HISTORY, np.random.default_rng(0))
    assert prepared[SUM_INDEX].tolist() == [4]
    assert np.abs(prepared[USER_FACTOR] - initial[USER_FACTOR]).max() > 1e-3, "it has taken the steps"


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_repeated_sum_is_answered_without_training_twice(name: str, changes: dict[str, Any]) -> None:
    made, side = make(name, **changes)
    found = states(made, 2)
    rng = np.random.default_rng(0)
    once = side.contribute(made.round_spec(SEED, 1), "c", found[0], HISTORY, side.initial_client_state(rng), rng)
    again = side.contribute(made.round_spec(SEED, 2, 1), "c", found[0], HISTORY, once.client_state, rng)
    np.testing.assert_array_equal(again.blocks[0], once.blocks[0])
    for key, value in once.client_state.items():
        np.testing.assert_array_equal(again.client_state[key], value)


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (History(np.array([1], np.int32)), "learns from ratings: pass {item: rating}"),
        (History(np.array([1], np.int32), np.array([5.5], np.float32)), r"1 \.\. 5 in this task, got 5.5"),
        (History(np.array([1], np.int32), np.array([0.5], np.float32)), "got 0.5"),
        (History(np.zeros(0, np.int32), np.zeros(0, np.float32)), "without interactions"),
    ],
)
def test_histories_without_valid_ratings_are_refused(history: History, problem: str) -> None:
    made, side = make("rfrec")
    rng = np.random.default_rng(0)
    with pytest.raises(ParameterError, match=problem):
        side.contribute(
            made.round_spec(SEED, 1), "c", made.initial_state(SEED), history, side.initial_client_state(rng), rng
        )


def test_models_of_another_sum_and_settings_are_refused() -> None:
    made, side = make("rfrec")
    rng = np.random.default_rng(0)
    later = replace(made.initial_state(SEED), round_number=3, sum_index=3)
    with pytest.raises(ParameterError, match="follows an earlier model, not that of sum 3"):
        side.contribute(made.round_spec(SEED, 3), "c", later, HISTORY, side.initial_client_state(rng), rng)
    with pytest.raises(ParameterError, match="the task determines how"):
        client_side(made, MFConfig())


def test_scaling_of_ratings_is_invertible() -> None:
    raw = RFRecParameters(items=1, rating_min=0.5, rating_max=4, variant="paper", scaling="raw")
    unit = raw.model_copy(update={"scaling": "unit"})
    given = np.array([0.5, 2.25, 4], np.float32)
    np.testing.assert_array_equal(scaled_ratings(given, raw), given)
    np.testing.assert_allclose(scaled_ratings(given, unit), [0, 0.5, 1])
    np.testing.assert_allclose(predicted_ratings(scaled_ratings(given, unit), unit), given)
    released = unit.model_copy(update={"variant": "released"})
    np.testing.assert_allclose(predicted_ratings(np.array([-50, 0, 50], np.float32), released), given, atol=1e-6)
