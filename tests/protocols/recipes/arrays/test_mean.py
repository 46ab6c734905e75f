"""One round of `arrays` is numpy's weighted mean, within the plan's predicted error, over every mechanism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.combinations import check_combination
from protocols.layout import VectorLayout
from protocols.recipes.arrays import Arrays
from protocols.recipes.arrays_update import contribution
from protocols.sums.ckks.mechanism import CKKS
from protocols.sums.masked.plan import make_plan as masked_plan
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.oneshot.plan import make_plan as oneshot_plan
from protocols.sums.oneshot.run import run_oneshot_sum
from protocols.sums.plain import PLAIN
from protocols.sums.run import run_sum
from tests.protocols.recipes.arrays.cases import CLIENTS, SEED, SHAPES, expected_mean, make, updates
from tests.protocols.sums.paillier.cases import MadeUpKeys

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
