"""The model of products with P, corrected by what else is known of P: it is symmetric and has no negative entry."""

from __future__ import annotations

import numpy as np
import pytest

from protocols.layout import Floats
from protocols.recipes.nonnegative import corrected, fits
from protocols.recipes.spectrum import Spectrum
from protocols.recipes.staircase import first_basis, next_basis, tiers_of, whole_spectrum
from protocols.recipes.state import STATE_TOLERANCE

SEED = bytes(range(32))
ITEMS = 60


def lists(seed: int, clients: int) -> Floats:
    """P of clients that each have a few neighbouring items: sparse, and not negative."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((clients, ITEMS))
    for row in rows:
        row[(rng.integers(ITEMS) + rng.choice(12, 5, replace=False)) % ITEMS] = 5**-0.25
    return np.asarray(rows.T @ rows)


def both(p: Floats, widths: np.ndarray, columns: int, rounding: float = 0.0) -> tuple[Spectrum, Spectrum, Floats]:
    """The model of three iterations, the corrected one, and how far the latter is from each released sum.

    rounding: by how much values of the sums differ, as a share of the largest.
    """
    tiers, has = tiers_of(widths), np.tile(np.arange(columns) < widths[:, None], 3)
    basis, asked, products = first_basis(SEED, tiers, len(p), columns, None), [], []
    noise = np.random.default_rng(0)
    for _ in range(3):
        asked.append(basis)
        products.append(np.where(has[:, :columns], p @ basis, 0.0))
        basis = next_basis(tiers, np.hstack(asked), np.hstack(products), columns)[1]
    q, y = np.hstack(asked), np.hstack(products)
    y = y * (1.0 + rounding * noise.standard_normal(y.shape))
    found = whole_spectrum(tiers, q, y, columns)
    better = corrected(tiers, q, y, columns, found)
    return found, better, np.where(has, y - matrix(better) @ q, 0.0)


def matrix(found: Spectrum) -> Floats:
    return np.asarray((found.vectors * found.eigenvalues) @ found.vectors.T)


def widths_of(columns: int) -> np.ndarray:
    return np.repeat([columns, columns - 1, 1], [30, 20, 10])


@pytest.mark.parametrize("seed", range(5))
def test_the_corrected_model_is_nearer_to_what_the_sums_are_of(seed: int) -> None:
    p = lists(seed, 80)
    before, after, _ = both(p, widths_of(6), 6)
    assert np.linalg.norm(matrix(after) - p) < 0.97 * np.linalg.norm(matrix(before) - p)
    assert after.vectors.shape == before.vectors.shape == (ITEMS, 18)
    assert (np.diff(after.eigenvalues) <= 0).all() and after.eigenvalues[-1] > 0
    np.testing.assert_allclose(after.vectors.T @ after.vectors, np.eye(18), atol=1e-9)


def test_a_model_that_is_right_stays_and_missing_vectors_are_zero() -> None:
    p = lists(1, 9)  # of rank 9, with 18 columns
    before, after, missing = both(p, np.full(ITEMS, 6), 6)
    np.testing.assert_allclose(matrix(before), p, atol=1e-6)
    np.testing.assert_allclose(matrix(after), p, atol=1e-6)
    assert np.abs(missing).max() < 1e-6
    assert np.count_nonzero(after.eigenvalues) == 9 and not after.vectors[:, 9:].any()
    nothing = both(np.zeros((ITEMS, ITEMS)), np.full(ITEMS, 6), 6)[1]
    assert not nothing.eigenvalues.any()


def test_two_processors_have_the_same_model_within_what_members_accept() -> None:
    p = lists(2, 80)
    one, other = (both(p, widths_of(6), 6, rounding)[1] for rounding in (0.0, 1e-12))
    for mine, theirs in ((one.vectors, other.vectors), (one.eigenvalues, other.eigenvalues)):
        assert np.abs(mine - theirs).max() <= STATE_TOLERANCE / 100 * np.abs(mine).max()


@pytest.mark.parametrize(
    ("items", "columns", "does"), [(60, 18, True), (5000, 160, True), (5000, 161, False), (5001, 9, False)]
)
def test_it_is_for_models_that_fit_into_memory_and_a_member_s_time(items: int, columns: int, does: bool) -> None:
    assert fits(items, columns) is does
