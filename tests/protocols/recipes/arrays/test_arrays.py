"""`arrays`: updates, one round as a weighted mean over every mechanism, and the four server optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.combinations import check_combination
from protocols.errors import ParameterError
from protocols.layout import VectorLayout
from protocols.recipes.arrays import Arrays, ArraysState
from protocols.recipes.arrays_update import Rows, block_of, contribution, touched_name
from protocols.recipes.state import state_as
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked.plan import make_plan as masked_plan
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.oneshot.plan import make_plan as oneshot_plan
from protocols.sums.oneshot.run import run_oneshot_sum
from protocols.sums.plain import PLAIN
from protocols.sums.run import run_sum
from tests.protocols.recipes.arrays.cases import CLIENTS, SEED, SHAPES, expected_mean, make, updates
from tests.protocols.sums.paillier.cases import MadeUpKeys


def change(**given: Any) -> dict[str, Any]:
    """A valid update, with some arrays replaced; None leaves an array out."""
    made = {**updates()[3], **{name.replace("_", "."): value for name, value in given.items()}}
    return {name: value for name, value in made.items() if value is not None}


@pytest.mark.parametrize(
    ("update", "fault"),
    [
        (change(bias=None), "array 'bias' is missing"),
        (change(other=np.zeros(3)), "array 'other' is not an array of this task"),
        (change(bias=np.zeros(4)), r"array 'bias' must have shape \(3,\), got \(4,\)"),
        (change(bias=np.zeros(3, np.int64)), "array 'bias' must hold floating-point numbers, got int64"),
        (change(bias=[0.0, 0.0, 0.0]), "array 'bias' must be a numpy array, got list"),
        (change(bias=np.array([0, np.nan, 0])), "array 'bias' holds values that are not finite"),
        (change(layer_weight=np.full((4, 3), np.inf)), "array 'layer.weight' holds values that are not finite"),
        (change(layer_weight=Rows(np.array([0]), np.zeros((1, 3)))), "array 'layer.weight' is not summed by rows"),
        (change(table=Rows(np.array([7]), np.zeros((1, 2, 2)))), r"array 'table' has no row outside 0\.\.6"),
        (change(table=Rows(np.array([1, 1]), np.zeros((2, 2, 2)))), "array 'table': a row is given twice"),
        (change(table=Rows(np.array([1.0]), np.zeros((1, 2, 2)))), "array 'table': the rows must be a flat list"),
        (change(table=Rows(np.array([1]), np.zeros((1, 4)))), "array 'table' must have shape"),
    ],
)
def test_a_wrong_update_is_refused_by_the_name_of_the_array(update: dict[str, Any], fault: str) -> None:
    with pytest.raises(ParameterError, match=fault):
        contribution(make().parameters, update)


def test_a_whole_table_touches_the_rows_that_changed() -> None:
    p, rows = make().parameters, Rows(np.array([5, 2]), np.full((2, 2, 2), 0.25, np.float32))
    table = np.zeros((7, 2, 2))
    table[[5, 2]] = 0.25
    sparse, whole = contribution(p, change(table=rows)), contribution(p, change(table=table))
    np.testing.assert_array_equal(sparse.vector, whole.vector)
    assert block_of(p).split(sparse.vector)[touched_name("table")].tolist() == [0, 0, 1, 0, 0, 1, 0]


def test_clipped_values_are_counted() -> None:
    p = make().parameters
    made = contribution(p, change(layer_weight=np.full((4, 3), -0.75), bias=np.array([2.0, 2.5, -9.0])))
    parts = block_of(p).split(made.vector)
    assert made.clipped == 14 and made.scaled == 1.0
    assert set(parts["layer.weight"]) == {-0.5} and parts["bias"].tolist() == [2.0, 2.0, -2.0]


def test_an_update_is_scaled_to_its_l2_clip_before_values_are_clipped() -> None:
    p = make(shapes={"a": [2], "b": [1]}, rows=[], clips={}, l2_clip=0.5).parameters
    made = contribution(p, {"a": np.array([0.0, 3.0]), "b": np.array([4.0])})
    assert made.scaled == pytest.approx(0.1) and made.clipped == 0
    np.testing.assert_allclose(made.vector, [0.0, 0.3, 0.4])
    assert contribution(p, {"a": np.array([0.0, 0.3]), "b": np.array([0.4])}).scaled == pytest.approx(1.0)


def test_a_weight_multiplies_the_update_and_is_summed_with_it() -> None:
    p = make(max_weight=10.0, reveal_weights=True).parameters
    parts = block_of(p).split(contribution(p, change(bias=np.array([1.0, -2.0, 0.0])), 4.0).vector)
    np.testing.assert_allclose(parts["bias"], [0.4, -0.8, 0.0])
    np.testing.assert_allclose(parts[" weight"], [0.4])
    assert sorted(set(parts[touched_name("table")])) == [0.0, 0.4]
    most = contribution(p, change(), 1e9).vector
    np.testing.assert_array_equal(most, contribution(p, change(), 10.0).vector)


def test_wrong_weights_are_refused() -> None:
    for weight in (0.0, 0.5, -1.0, float("nan")):
        with pytest.raises(ParameterError, match="at least 1"):
            contribution(make(max_weight=10.0, reveal_weights=True).parameters, change(), weight)
    with pytest.raises(ParameterError, match="no weights"):
        contribution(make().parameters, change(), 3.0)


Vectors = list[NDArray[np.float64]]
Summed = tuple[NDArray[np.float64], float]


def plain(layout: VectorLayout, vectors: Vectors) -> Summed:
    plan = PLAIN.plan({}, layout, len(vectors))
    return run_sum(PLAIN, plan, vectors).total, plan.predicted_error


def ckks(layout: VectorLayout, vectors: Vectors) -> Summed:
    plan = CKKS.plan({}, layout, len(vectors))
    return run_sum(CKKS, plan, vectors).total, plan.predicted_error


def paillier(layout: VectorLayout, vectors: Vectors) -> Summed:
    mechanism = MadeUpKeys()
    plan = mechanism.plan({"key_bits": 2048}, layout, len(vectors))
    return run_sum(mechanism, plan, vectors).total, plan.predicted_error


def masked(layout: VectorLayout, vectors: Vectors) -> Summed:
    plan = masked_plan({"dropout": 0.0}, layout, len(vectors))
    named = {f"c{number}": vector for number, vector in enumerate(vectors)}
    return run_masked_sum(plan, named).total, plan.predicted_error


def oneshot(layout: VectorLayout, vectors: Vectors) -> Summed:
    plan = oneshot_plan({}, layout, len(vectors))
    named = {f"c{number}": vector for number, vector in enumerate(vectors)}
    return run_oneshot_sum(plan, named).total, plan.predicted_error


MECHANISMS: dict[str, Callable[[VectorLayout, Vectors], Summed]] = {
    "ckks": ckks,
    "masked": masked,
    "oneshot": oneshot,
    "paillier": paillier,
    "plain": plain,
}


def one_round(recipe: Arrays, vectors: Vectors, mechanism: str) -> tuple[dict[str, Any], float]:
    """Return how far each array moved in one round, and the bound on the error of the sum."""
    check_combination(recipe, mechanism)
    total, error = MECHANISMS[mechanism](recipe.layout(), vectors)
    before = recipe.initial_state(SEED)
    after = recipe.absorb(before, recipe.round_spec(SEED, 1), total, len(vectors))
    start = recipe.arrays(before)
    return {name: array.astype(np.float64) - start[name] for name, array in recipe.arrays(after).items()}, error


@pytest.mark.parametrize("mechanism", sorted(MECHANISMS))
@pytest.mark.parametrize("max_weight", [None, 20.0])
def test_a_round_is_the_weighted_mean(mechanism: str, max_weight: float | None) -> None:
    recipe, made = make(max_weight=max_weight, reveal_weights=max_weight is not None, std=0.0), updates()
    given = [1.0] * CLIENTS if max_weight is None else [1.0, 3.5, 20.0, 400.0, 7.0]
    counted = [min(weight, max_weight or 1.0) for weight in given]
    parts = [
        contribution(recipe.parameters, update, None if max_weight is None else weight)
        for update, weight in zip(made, given, strict=True)
    ]
    assert [(part.clipped, part.scaled) for part in parts] == [(0, 1.0)] * CLIENTS
    moved, error = one_round(recipe, [part.vector for part in parts], mechanism)
    expected = expected_mean(made, counted)
    # (sum + e) / (weights + e): an error of both, divided by the smallest sum of weights of a row
    least = min(counted) / (max_weight or 1.0)
    bound = (1.0 + 2.0) * error / (least - error) + 1e-6
    assert bound < 0.05
    for name in SHAPES:
        np.testing.assert_allclose(moved[name], expected[name], atol=bound, rtol=0, err_msg=name)
    assert not moved["table"][6].any()  # nobody touched it


def test_a_round_of_long_arrays_is_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = one_round(make(), [contribution(make().parameters, update).vector for update in updates()], "plain")
    monkeypatch.setattr("protocols.recipes.arrays.PIECE", 5)
    pieces, _ = one_round(make(), [contribution(make().parameters, update).vector for update in updates()], "plain")
    for name in SHAPES:
        np.testing.assert_array_equal(whole[name], pieces[name])


def test_no_error_of_a_sum_moves_a_value_further_than_its_clip() -> None:
    recipe = make(max_weight=100.0, reveal_weights=True, std=0.0)
    total = np.full(recipe.layout().length, 0.009)  # weights of 0.009 and sums of 0.009: a mean of 1
    after = recipe.absorb(recipe.initial_state(SEED), recipe.round_spec(SEED, 1), total, 3)
    moved = recipe.arrays(after)
    assert np.abs(moved["table"]).max() == 0.5 and np.abs(moved["bias"]).max() == 1.0
    none = recipe.absorb(recipe.initial_state(SEED), recipe.round_spec(SEED, 1), total / 2, 3)
    assert not any(array.any() for array in recipe.arrays(none).values())


RATE, BETA_1, BETA_2, TAU, ROUNDS = 0.3, 0.8, 0.95, 0.01, 6
CHOICE: dict[str, Any] = {"server_rate": RATE, "momentum": BETA_1, "second_momentum": BETA_2, "adaptivity": TAU}


def reference(kind: str, x: float, updates: list[float]) -> float:
    """One value, in Python's own numbers."""
    m, v = 0.0, TAU**2
    for delta in updates:
        if kind == "mean":
            x += RATE * delta
            continue
        if kind == "momentum":
            m = BETA_1 * m + delta
            x += RATE * m
            continue
        m = BETA_1 * m + (1 - BETA_1) * delta
        if kind == "adam":
            v = BETA_2 * v + (1 - BETA_2) * delta**2
        else:
            v = v - (1 - BETA_2) * delta**2 * math.copysign(1.0, v - delta**2)
        x += RATE * m / (math.sqrt(v) + TAU)
    return x


@pytest.mark.parametrize("kind", ["mean", "momentum", "adam", "yogi"])
def test_optimiser_is_the_reference(kind: str) -> None:
    recipe = make(shapes={"w": [40]}, clips={}, rows=[], optimiser=kind, clip=1.0, **CHOICE)
    rng, plan = np.random.default_rng(1), PLAIN.plan({}, recipe.layout(), 2)
    state = recipe.initial_state(SEED)
    start, means = state.values.astype(float), []
    for number in range(1, ROUNDS + 1):
        made = [rng.uniform(-1, 1, 40) * rng.uniform(0, 1, 40) ** 4 for _ in range(2)]
        vectors = [contribution(recipe.parameters, {"w": update}).vector for update in made]
        total = run_sum(PLAIN, plan, vectors).total
        state = recipe.absorb(state, recipe.round_spec(SEED, number), total, 2)
        state = recipe.decode_state(number, recipe.encode_state(state))  # what the optimiser remembers is in it
        means.append((made[0] + made[1]) / 2)
    for place in range(40):
        expected = reference(kind, start[place], [float(mean[place]) for mean in means])
        assert state.values[place] == pytest.approx(expected, abs=2e-5)
    assert np.abs(state.values - start).max() > 0.05


def test_members_who_replay_and_who_load_a_snapshot_have_the_same_state() -> None:
    recipe = make(optimiser="yogi", std=0.1)
    rng, states = np.random.default_rng(2), [recipe.initial_state(SEED), recipe.initial_state(SEED)]
    for number in range(1, 5):
        total = rng.uniform(0, 0.5, recipe.layout().length)
        states = [recipe.absorb(state, recipe.round_spec(SEED, number), total, 3) for state in states]
        states[1] = state_as(recipe.decode_state(number, recipe.encode_state(states[1])), ArraysState)
    assert recipe.encode_state(states[0]) == recipe.encode_state(states[1])
