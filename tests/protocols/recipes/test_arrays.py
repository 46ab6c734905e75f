"""`arrays`: updates, one round as a weighted mean, the server optimisers, states, parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError
from protocols.recipes.arrays import Arrays, ArraysState, state_of
from protocols.recipes.arrays_update import Rows, block_of, contribution, touched_name
from protocols.recipes.registry import recipe
from protocols.recipes.state import state_as

SEED = bytes(range(32))
SHAPES: dict[str, list[int]] = {"layer.weight": [4, 3], "bias": [3], "table": [7, 2, 2], "scale": []}
BASE: dict[str, Any] = {"shapes": SHAPES, "clip": 0.5, "clips": {"bias": 2.0}, "rows": ["table"], "reveal_rows": True}
CLIENTS = 5


def make(**changes: Any) -> Arrays:
    return recipe("arrays", {**BASE, **changes})


def updates(seed: int = 0) -> list[dict[str, Any]]:
    """One update a client, within the clips; no client touches row 6 of the table, and client 0 no row at all."""
    rng, made = np.random.default_rng(seed), []
    for client in range(CLIENTS):
        rows = rng.permutation(6)[:client]
        made.append(
            {
                "layer.weight": rng.uniform(-0.5, 0.5, (4, 3)).astype(np.float32),
                "bias": rng.uniform(-2, 2, 3),
                "table": Rows(rows, rng.uniform(-0.5, 0.5, (rows.size, 2, 2))),
                "scale": np.array(rng.uniform(-0.5, 0.5), np.float32),
            }
        )
    return made


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
        (change(layer_weight=np.ma.masked_less(np.ones((4, 3)), 2)), "array 'layer.weight' has masked values"),
        ({f"_orig_mod.{name}": array for name, array in change().items()}, "torch.compile: use the module's _orig_mod"),
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


def test_wrong_weights_are_refused() -> None:
    for weight in (0.0, 0.5, -1.0, float("nan"), float("inf"), 10**400, "3", [3]):
        with pytest.raises(ParameterError, match="at least 1"):
            contribution(make(max_weight=10.0, reveal_weights=True).parameters, change(), weight)
    with pytest.raises(ParameterError, match="no weights"):
        contribution(make().parameters, change(), 3.0)


def one_round(recipe: Arrays, vectors: list[NDArray[np.float64]]) -> dict[str, NDArray[np.float32]]:
    """Return how far each array moved in one round."""
    before = recipe.initial_state(SEED)
    after = recipe.absorb(before, recipe.round_spec(SEED, 1), np.sum(vectors, axis=0), len(vectors))
    start = recipe.arrays(before)
    return {name: array - start[name] for name, array in recipe.arrays(after).items()}


@pytest.mark.parametrize("max_weight", [None, 20.0])
def test_a_round_is_the_weighted_mean(max_weight: float | None) -> None:
    recipe, made = make(max_weight=max_weight, reveal_weights=max_weight is not None, std=0.0), updates()
    given = [1.0] * CLIENTS if max_weight is None else [1.0, 3.5, 20.0, 400.0, 7.0]
    counted = [min(weight, max_weight or 1.0) for weight in given]
    parts = [
        contribution(recipe.parameters, update, None if max_weight is None else weight)
        for update, weight in zip(made, given, strict=True)
    ]
    assert [(part.clipped, part.scaled) for part in parts] == [(0, 1.0)] * CLIENTS
    moved = one_round(recipe, [part.vector for part in parts])
    table, touched = np.zeros((7, 2, 2)), np.zeros((7, 1, 1))
    for weight, update in zip(counted, made, strict=True):
        table[update["table"].indices] += weight * update["table"].values
        touched[update["table"].indices] += weight
    np.testing.assert_allclose(moved["table"], table / np.maximum(touched, 1e-9), atol=1e-6)
    for name in SHAPES.keys() - {"table"}:
        mean = np.average([update[name] for update in made], axis=0, weights=counted)
        np.testing.assert_allclose(moved[name], mean, atol=1e-6, err_msg=name)
    assert not moved["table"][6].any()  # nobody touched it


def test_a_round_of_long_arrays_is_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = [contribution(make().parameters, update).vector for update in updates()]
    whole = one_round(make(), vectors)
    monkeypatch.setattr("protocols.recipes.arrays.PIECE", 5)
    pieces = one_round(make(), vectors)
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


def test_members_who_replay_and_who_load_a_snapshot_have_the_same_state() -> None:
    recipe = make(optimiser="yogi", std=0.1)
    rng, states = np.random.default_rng(2), [recipe.initial_state(SEED), recipe.initial_state(SEED)]
    for number in range(1, 5):
        total = rng.uniform(0, 0.5, recipe.layout().length)
        states = [recipe.absorb(state, recipe.round_spec(SEED, number), total, 3) for state in states]
        states[1] = state_as(recipe.decode_state(number, recipe.encode_state(states[1])), ArraysState)
    assert recipe.encode_state(states[0]) == recipe.encode_state(states[1])


def test_initial_values_follow_from_the_seed() -> None:
    made = make(shapes={"a": [600, 500], "b": [3]}, rows=[], clips={}, std=0.5, stds={"b": 0.0})
    arrays = made.arrays(made.initial_state(SEED))
    assert abs(arrays["a"].std() - 0.5) < 0.01 and abs(arrays["a"].mean()) < 0.01 and not arrays["b"].any()
    assert made.encode_state(made.initial_state(SEED)) == made.encode_state(made.initial_state(SEED))
    assert (arrays["a"] != made.arrays(made.initial_state(bytes(32)))["a"]).any()
    assert (arrays["a"].ravel()[: 1 << 15] != arrays["a"].ravel()[1 << 18 :][: 1 << 15]).any()


def test_a_mean_of_squares_is_not_negative() -> None:
    made = make(optimiser="adam")
    body = made.encode_state(made.initial_state(SEED))
    with pytest.raises(CodecError):
        made.decode_state(7, body[:-4] + np.array([-1.0], "<f4").tobytes())


def test_state_of_given_values() -> None:
    p, rng = make().parameters, np.random.default_rng(3)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    held = make().arrays(state_of(p, given))
    for name in SHAPES:
        np.testing.assert_array_equal(held[name], given[name])
    with pytest.raises(ValueError, match="read-only"):
        held["bias"][0] = 1.0
    for wrong, fault in (
        ({**given, "bias": np.zeros(4)}, "array 'bias' must have shape"),
        ({**given, "bias": np.full(3, np.nan)}, "array 'bias' holds values that are not finite"),
        ({**given, "bias": np.full(3, 1e300)}, "array 'bias' holds values that are not finite"),
        ({**given, "more": np.zeros(4)}, "'more' is not an array"),
        ({name: given[name] for name in SHAPES if name != "bias"}, "'bias' is missing"),
        ({**given, "bias": [0.0, 0.0, 0.0]}, "array 'bias' must be a numpy array, got list"),
        ({**given, "bias": np.zeros(3, int)}, "array 'bias' must hold floating-point numbers, got int64"),
        ({**given, "bias": np.zeros(3, object)}, "array 'bias' must hold floating-point numbers, got object"),
        ({**given, "bias": np.ma.masked_equal([0.0, 1.0, 2.0], 1.0)}, "array 'bias' has masked values"),
        ({f"_orig_mod.{name}": array for name, array in given.items()}, "torch.compile: use the module's _orig_mod"),
        ({f"module.{name}": array for name, array in given.items()}, "DataParallel: use its module"),
    ):
        with pytest.raises(ParameterError, match=fault):
            state_of(p, wrong)


def test_a_task_with_uploaded_values_has_none_from_the_seed() -> None:
    made = make(initial={"digest": "0" * 64})
    assert made.parameters.start_digest == "0" * 64
    with pytest.raises(ParameterError, match="uploaded"):
        made.initial_state(SEED)
