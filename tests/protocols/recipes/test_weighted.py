"""The weighted mean as a sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.errors import ParameterError
from protocols.recipes.weighted import weigh, weight_of, weighted_block, weighted_mean

VALUES = st.floats(-8, 8, width=32)


@given(
    st.lists(st.tuples(arrays(np.float64, 5, elements=VALUES), st.integers(1, 1000)), min_size=1, max_size=8),
    st.integers(1, 1000),
)
def test_the_sum_gives_the_mean_weighted_by_the_capped_number_of_interactions(clients, most):
    total = np.sum([weigh(vector, weight_of(size, most)) for vector, size in clients], axis=0)
    expected = np.average([vector for vector, _ in clients], axis=0, weights=[min(size, most) for _, size in clients])
    np.testing.assert_allclose(weighted_mean(total), expected, atol=1e-9)


@given(arrays(np.float64, 4, elements=VALUES), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_contribution_keeps_the_bounds_of_its_block(vector, size, most):
    block = weighted_block("factors", 4, 8.0)
    sent = weigh(vector, weight_of(size, most))
    assert sent.shape == (block.length,)
    assert (np.abs(sent) <= block.bounds()).all()
    assert sent[-1] > 0


def test_the_most_active_client_counts_for_no_more_than_the_cap():
    assert weight_of(10_000, 100) == weight_of(100, 100) == 1.0
    assert weight_of(25, 100) == 0.25


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.001, float("nan")])
def test_other_weights_are_refused(weight):
    with pytest.raises(ParameterError, match="weight must lie in"):
        weigh(np.ones(2), weight)


@pytest.mark.parametrize(("size", "most"), [(0, 10), (-1, 10), (5, 0)])
def test_a_weight_needs_interactions_and_a_cap(size, most):
    with pytest.raises(ParameterError, match="at least 1"):
        weight_of(size, most)


@pytest.mark.parametrize("total", [np.zeros(3), np.array([1.0, 1.0, -1e-9]), np.array([1.0]), np.full(3, np.nan)])
def test_a_sum_without_weight_has_no_mean(total):
    with pytest.raises(ParameterError, match="positive sum of weights"):
        weighted_mean(total)
