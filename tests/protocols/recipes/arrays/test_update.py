"""What a client may send: every fault names the array; clipping, scaling and weights are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.errors import ParameterError
from protocols.recipes.arrays_update import Rows, block_of, contribution, touched_name
from tests.protocols.recipes.arrays.cases import make, updates


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
