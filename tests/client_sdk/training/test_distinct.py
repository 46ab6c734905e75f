"""Distinct values, counted or sorted: the result of `np.unique`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from client_sdk.training.base import distinct


@given(
    arrays(np.dtype("int32"), st.integers(0, 40), elements=st.integers(0, 50)),
    st.sampled_from([51, 8 * 40, 10_000]),
)
def test_values_places_and_counts_are_those_of_unique(values: np.ndarray, bound: int) -> None:
    expected = np.unique(values, return_inverse=True, return_counts=True)
    found = distinct(values, bound)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.intp
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("bound", [4, 1_000_000])
def test_both_ways_restore_the_values(bound: int) -> None:
    values = np.array([3, 1, 3, 0, 1, 3], dtype=np.intp)
    used, places, counts = distinct(values, bound)
    assert used[places].tolist() == values.tolist()
    assert (used.tolist(), counts.tolist()) == ([0, 1, 3], [1, 2, 3])
