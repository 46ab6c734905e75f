"""The client side of PFedCLR: gradients, Adam, and what each step changes, sends and keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk.history import History
from client_sdk.training import client_side
from client_sdk.training.adam import Adam
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.mf import MFConfig, Samples, draw_samples
from client_sdk.training.pfedclr import (
    BUFFER,
    BUFFER_BASIS,
    BUFFER_ROWS,
    FreeUser,
    FrozenUser,
    LowRank,
    PFedCLRConfig,
    PFedCLRSide,
    descend,
)
from protocols.errors import ParameterError
from protocols.recipes.base import FactorState
from protocols.recipes.registry import recipe
from tests.support.measured import slopes

TASK_SEED = bytes(range(32))
ITEMS, DIM, RANK = 40, 5, 2
MINE = History(np.array([3, 17, 8, 30, 21, 9], np.int32))
VARIANTS = ("af", "cf", "clr", "fedmf")
FEW = PFedCLRConfig(epochs=3, batch_size=8)


def pfedclr(variant: str = "clr", training: PFedCLRConfig = FEW, **changes: Any) -> PFedCLRSide:
    made = recipe("pfedclr", {"items": ITEMS, "dim": DIM, "rank": RANK, "variant": variant, **changes})
    return client_side(made, training)


def state(chosen: PFedCLRSide) -> FactorState:
    return chosen.recipe.initial_state(TASK_SEED)


def run_client(chosen: PFedCLRSide, seed: int = 0) -> tuple[Any, Any, Any]:
    """Run one round; return the initial client state, the result, and the state after step 2."""
    client_state = chosen.initial_client_state(np.random.default_rng([seed, 1]))
    spec, rng = chosen.recipe.round_spec(TASK_SEED, 1), np.random.default_rng(seed)
    local = chosen.contribute(spec, "c_1", state(chosen), MINE, client_state, rng)
    return client_state, local, local.finish()


# --- gradients and steps ---------------------------------------------------------------------------------------------


def models(kind: str, rng: np.random.Generator, k: int) -> Any:
    base, user = rng.standard_normal((k, DIM)), rng.standard_normal(DIM)
    if kind == "low rank":
        return LowRank(base, rng.standard_normal((k, RANK)), rng.standard_normal((RANK, DIM)), user, [0.1] * 3)
    return FreeUser(base if kind.endswith("base") else None, rng.standard_normal((k, DIM)), user, [0.1] * 2)


@pytest.mark.parametrize("kind", ["free", "free, base", "low rank"])
def test_gradients_equal_those_of_the_mean_loss_of_the_batch(kind: str) -> None:
    rng = np.random.default_rng(3)
    samples = draw_samples(MINE.items, ITEMS, 2, rng)
    model = models(kind, rng, samples.items.size)

    parameters = [model.rows, model.basis, model.user] if kind == "low rank" else [model.rows, model.user]
    for parameter, gradient in zip(parameters, model.gradients(residuals_of(model, samples)), strict=True):
        np.testing.assert_allclose(gradient, slopes(lambda: loss_of(model, samples), parameter), atol=1e-8)


def loss_of(model: Any, samples: Samples) -> float:
    logits = model.logits()[samples.rows]
    return float(np.mean(np.logaddexp(0, logits) - samples.labels * logits))


def residuals_of(model: Any, samples: Samples) -> np.ndarray:
    residuals = 1 / (1 + np.exp(-model.logits()[samples.rows])) - samples.labels
    return np.bincount(samples.rows, residuals, samples.items.size) / samples.rows.size


@pytest.mark.parametrize("base", [False, True])
def test_step_with_frozen_user_equals_adam_on_the_gradient_of_the_loss(base: bool) -> None:
    rng = np.random.default_rng(4)
    samples = draw_samples(MINE.items, ITEMS, 2, rng)
    fixed = rng.standard_normal((samples.items.size, DIM)) if base else None
    model = FrozenUser(fixed, rng.standard_normal((samples.items.size, DIM)), rng.standard_normal(DIM), 0.03)
    rows = model.rows.copy()
    dense = Adam([rows], [0.03])

    for _ in range(5):
        dense.step([slopes(lambda: loss_of(model, samples), model.rows)])
        model.step(residuals_of(model, samples))
        np.testing.assert_allclose(model.rows, rows, atol=1e-5)


def test_adam_equals_the_papers_algorithm() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((3, 2)).astype(np.float32), rng.standard_normal(4).astype(np.float32)]
    rates = (0.05, 0.01)
    adam = Adam(arrays, [0.05, np.full(4, 0.01, np.float32)])
    expected = [array.astype(np.float64) for array in arrays]
    means, squares = ([np.zeros(array.shape) for array in arrays] for _ in range(2))
    for step in range(1, 8):
        gradients = []
        for place, array in enumerate(arrays):
            gradient = rng.standard_normal(array.shape).astype(np.float32)
            gradient[2] = 0.0 if step < 4 else gradient[2]
            means[place] = 0.9 * means[place] + 0.1 * gradient
            squares[place] = 0.999 * squares[place] + 0.001 * gradient.astype(np.float64) ** 2
            moved = means[place] / (1 - 0.9**step) / (np.sqrt(squares[place] / (1 - 0.999**step)) + 1e-8)
            expected[place] -= rates[place] * moved
            assert np.all(moved[2] == 0) == (step < 4)  # rows without a gradient so far do not change
            gradients.append(gradient)
        adam.step(gradients)
        for value, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(value, wanted, atol=1e-6)


def test_training_the_rows_of_samples_equals_training_the_whole_table() -> None:
    """Dense Adam over all items with the same draws gives the same rows."""
    chosen = pfedclr("cf", PFedCLRConfig(epochs=2, batch_size=7))
    client_state, local, _ = run_client(chosen, seed=4)
    factors, user = state(chosen).item_factors.astype(np.float32).copy(), client_state[USER_FACTOR].copy()
    rng = np.random.default_rng(4)
    samples = draw_samples(MINE.items, ITEMS, 4, rng)
    everything = Samples(np.arange(ITEMS, dtype=np.int32), samples.items[samples.rows].astype(np.intp), samples.labels)
    whole = FrozenUser(None, factors, user, 0.01)
    descend(whole, everything, chosen.training, rng)
    np.testing.assert_allclose(local.blocks[0].reshape(ITEMS, DIM), whole.rows - factors, atol=1e-6)


# --- what each step changes and sends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "first", "second"),
    [
        ("clr", set(), {USER_FACTOR, BUFFER_ROWS, BUFFER_BASIS}),
        ("cf", set(), {USER_FACTOR, BUFFER}),
        ("af", {USER_FACTOR}, {BUFFER}),
        ("fedmf", {USER_FACTOR}, set()),
    ],
)
def test_each_step_changes_what_the_variant_trains(variant: str, first: set[str], second: set[str]) -> None:
    before, local, _ = run_client(pfedclr(variant))
    sent, kept = local.blocks[0].copy(), {name: array.copy() for name, array in local.client_state.items()}
    touched = np.flatnonzero(sent.reshape(ITEMS, DIM).any(axis=1))
    assert set(MINE.items.tolist()) <= set(touched.tolist())
    assert touched.size < ITEMS
    assert {name for name in before if not np.array_equal(kept[name], before[name])} == first
    after = local.finish()
    np.testing.assert_array_equal(local.blocks[0], sent)
    for name in before:
        np.testing.assert_array_equal(local.client_state[name], kept[name])
    assert {name for name in after if not np.array_equal(after[name], kept[name])} == second


def test_contribution_does_not_depend_on_earlier_personalisation() -> None:
    """Step 1 does not use A and B of earlier rounds: the same p gives the same contribution."""
    chosen = pfedclr("clr")
    client_state = chosen.initial_client_state(np.random.default_rng(2))
    spoiled = {**client_state, BUFFER_ROWS: client_state[BUFFER_ROWS] + 7, BUFFER_BASIS: client_state[BUFFER_BASIS] * 3}
    spec = chosen.recipe.round_spec(TASK_SEED, 1)
    one, other = (
        chosen.contribute(spec, "c_1", state(chosen), MINE, kept, np.random.default_rng(0))
        for kept in (client_state, spoiled)
    )
    np.testing.assert_array_equal(one.blocks[0], other.blocks[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_use_the_personal_items(variant: str) -> None:
    chosen = pfedclr(variant)
    _, _, after = run_client(chosen)
    factors = state(chosen).item_factors.astype(np.float64)
    if variant == "clr":
        factors = factors + after[BUFFER_ROWS] @ after[BUFFER_BASIS]
    elif variant != "fedmf":
        factors = factors + after[BUFFER]
    scores = chosen.scores(state(chosen), after, MINE)
    assert scores.shape == (ITEMS,)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, factors @ after[USER_FACTOR], atol=1e-5)


def test_noise_differs_between_calls() -> None:
    chosen = pfedclr("clr", noise_scale=0.5)
    one, other = run_client(chosen)[1].blocks[0], run_client(chosen)[1].blocks[0]  # with the same training draws
    assert np.count_nonzero(one == other) < ITEMS


def test_settings_of_another_recipe_and_invalid_ones_are_refused() -> None:
    with pytest.raises(ParameterError, match="PFedCLRConfig, not a MFConfig"):
        client_side(pfedclr().recipe, MFConfig())
    for setting in ("epochs", "buffer_learning_rate"):
        with pytest.raises(ParameterError, match=setting):
            PFedCLRConfig(**{setting: 0})
    with pytest.raises(ParameterError, match="nothing to train on"):
        chosen = pfedclr()
        chosen.contribute(
            chosen.recipe.round_spec(TASK_SEED, 1), "c", state(chosen), History(np.zeros(0, np.int32)),
            chosen.initial_client_state(np.random.default_rng(0)), np.random.default_rng(0),
        )  # fmt: skip


def test_initial_state_is_shared_or_own() -> None:
    one, other = np.random.default_rng(1), np.random.default_rng(2)
    for start, alike in (("shared", True), ("own", False)):
        chosen = pfedclr("clr", start=start)
        first, second = chosen.initial_client_state(one), chosen.initial_client_state(other)
        for name in (USER_FACTOR, BUFFER_BASIS):
            assert np.array_equal(first[name], second[name]) == alike
            assert 0.4 < first[name].std() < 2.0
        assert not first[BUFFER_ROWS].any()


def test_plain_contribution_reveals_the_items_of_its_user() -> None:
    """A plain sum of this recipe reveals the items, because all rows change along one direction."""
    rows = run_client(pfedclr("clr", PFedCLRConfig()))[1].blocks[0].reshape(ITEMS, DIM)
    along = rows @ np.linalg.svd(rows, full_matrices=False)[2][0]
    fewer = min((np.flatnonzero(side > 1e-9) for side in (along, -along)), key=len)
    assert set(fewer.tolist()) == set(MINE.items.tolist())
