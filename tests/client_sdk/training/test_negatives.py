"""Negatives are drawn from all other items without allocating a list of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.training.mf import draw_negatives
from protocols.errors import ParameterError


@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_draws_equal_those_from_the_pool(seed: int, n_items: int) -> None:
    rng = np.random.default_rng(seed)
    positives = rng.permutation(n_items)[: rng.integers(0, n_items - 1)].astype(np.int32)
    pool = np.setdiff1d(np.arange(n_items), positives)
    drawn = draw_negatives(positives, n_items, 30, np.random.default_rng(seed))
    np.testing.assert_array_equal(drawn, pool[np.random.default_rng(seed).integers(0, pool.size, 30)])
    assert drawn.dtype == np.int32


def test_drawing_does_not_allocate_a_list_of_all_items() -> None:
    positives = np.arange(0, 5000, 5, dtype=np.int32)
    tracemalloc.start()
    draw_negatives(positives, 4_000_000, 1000, np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_client_with_all_items_has_no_negatives() -> None:
    with pytest.raises(ParameterError, match="has all"):
        draw_negatives(np.arange(5, dtype=np.int32), 5, 1, np.random.default_rng(0))
