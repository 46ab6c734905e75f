"""Products whose rows have different numbers of columns: what is found from them, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import CodecError
from protocols.recipes.spectrum import nystroem_factor
from protocols.recipes.staircase import (
    first_basis,
    next_basis,
    places_of,
    require_of_rows,
    tiers_of,
    whole_spectrum,
)

SEED = bytes(range(32))


def low_rank(rng: np.random.Generator, items: int, rank: int) -> np.ndarray:
    """A random P of so many items and dimensions, without a negative eigenvalue."""
    rows = rng.standard_normal((rank, items))
    return np.asarray(rows.T @ rows)


def iterated(p: np.ndarray, widths: np.ndarray, columns: int, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """All Q and all Y of a task, with 0 for the entries that rows do not have."""
    tiers, has = tiers_of(widths), np.arange(columns) < widths[:, None]
    basis, asked, products = first_basis(SEED, tiers, len(p), columns, None), [], []
    for _ in range(iterations):
        assert not basis[~has].any(), "no row is asked beyond its columns"
        asked.append(basis)
        products.append(np.where(has, p @ basis, 0.0))
        basis = next_basis(tiers, np.hstack(asked), np.hstack(products), columns)[1]
    return np.hstack(asked), np.hstack(products)


def test_tiers_are_nested_and_places_follow_row_by_row() -> None:
    widths = np.array([2, 0, 3, 2])
    tiers = tiers_of(widths)
    assert [(tier.rows.tolist(), tier.first, tier.last) for tier in tiers] == [([0, 2, 3], 0, 2), ([2], 2, 3)]
    assert tiers[1].of_all(3, 2).tolist() == [2, 5]
    has, places = places_of(widths)
    assert (has.sum(1).tolist(), places.tolist()) == (widths.tolist(), list(range(7)))
    assert places_of(widths[[0, 2]], np.array([10, 20]))[1].tolist() == [10, 11, 20, 21, 22]
    assert tiers_of(np.zeros(3, np.int64)) == [] and places_of(np.zeros(3, np.int64))[1].size == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 4))
def test_the_model_is_not_larger_than_what_it_approximates_in_the_rows_of_the_last_tier(
    seed: int, iterations: int, columns: int
) -> None:
    rng = np.random.default_rng(seed)
    p = low_rank(rng, 30, 20)
    widths = rng.integers(0, columns + 1, 30)
    widths[:15] = columns
    found = whole_spectrum(tiers_of(widths), *iterated(p, widths, columns, iterations), columns)
    model, last = (found.vectors * found.eigenvalues) @ found.vectors.T, np.ix_(widths == columns, widths == columns)
    assert np.linalg.eigvalsh((p - model)[last])[0] >= -1e-7 * np.linalg.norm(p)
    assert not model[widths == 0].any()
    assert (np.diff(found.eigenvalues) <= 1e-9).all() and found.vectors.shape == (30, iterations * columns)


def test_with_all_columns_it_is_nystroems_approximation_and_exact_for_as_many_as_the_rank() -> None:
    p, widths = low_rank(np.random.default_rng(1), 25, 8), np.full(25, 4)
    for iterations in (1, 2):
        asked, products = iterated(p, widths, 4, iterations)
        np.testing.assert_allclose(asked.T @ asked, np.eye(4 * iterations), atol=1e-12)
        found = whole_spectrum(tiers_of(widths), asked, products, 4)
        model, factor = (found.vectors * found.eigenvalues) @ found.vectors.T, nystroem_factor(asked, products)
        np.testing.assert_allclose(model, factor @ factor.T, atol=1e-9)
    np.testing.assert_allclose(model, p, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_a_tier_is_exact_in_its_rows_once_it_has_as_many_columns_as_is_left(seed: int) -> None:
    p = low_rank(np.random.default_rng(seed), 24, 6)
    widths = np.where(np.arange(24) < 16, 4, 1)
    found = whole_spectrum(tiers_of(widths), *iterated(p, widths, 4, 2), 4)
    model = (found.vectors * found.eigenvalues) @ found.vectors.T
    np.testing.assert_allclose(model[:16, :16], p[:16, :16], atol=1e-7)
    assert np.abs(model[16:, 16:] - p[16:, 16:]).max() > 0.1, "two equations of a rank of six"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.sampled_from([0.0, 0.3]))
def test_products_of_any_rows_pass_and_what_is_added_without_regard_to_q_does_not(
    seed: int, columns: int, noise: float
) -> None:
    """Whatever the rows, their number and their columns; and the noise of a privacy block is not taken for a lie."""
    rng = np.random.default_rng(seed)
    widths = rng.integers(0, columns + 1, 40)
    widths[:columns] = columns
    tiers, has = tiers_of(widths), np.arange(columns) < widths[:, None]
    basis = first_basis(SEED, tiers, 40, columns, None)
    product = np.where(has, low_rank(rng, 40, int(rng.integers(1, 60))) @ basis, 0.0)
    rounding = 1e-6 * np.abs(product).max() * rng.standard_normal(product.shape)
    deviations = np.full(40, noise)
    honest = product + np.where(has, rounding + noise * rng.standard_normal(has.shape), 0)
    require_of_rows(tiers, basis, honest, deviations)
    first = tiers[0]
    size = np.linalg.norm(product[first.rows, first.first : first.last]) + 30 * noise
    drawn = np.where(has, size * rng.standard_normal(has.shape), 0.0)
    lies = [-product] if not noise else []
    lies += [product + drawn] if first.last - first.first > 1 else []
    for lie in lies:
        with pytest.raises(CodecError, match="no product with a matrix that clients' rows give"):
            require_of_rows(tiers, basis, lie, deviations)


def test_nothing_is_a_sum_of_rows_that_are_nothing() -> None:
    tiers = tiers_of(np.full(5, 2))
    basis = first_basis(SEED, tiers, 5, 2, None)
    require_of_rows(tiers, basis, np.zeros((5, 2)), np.zeros(5))
    require_of_rows([], np.zeros((5, 0)), np.zeros((5, 0)), np.zeros(5))
