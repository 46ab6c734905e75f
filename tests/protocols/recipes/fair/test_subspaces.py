"""Hashed subspaces: nested, consistent, adjoint, and computed in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.recipes.subspaces import Subspace, bucket_counts, fold, hash_key, splitmix64, unfold

SEED = bytes(range(32))
KEYS = st.integers(0, 2**64 - 1)
SIZES = st.tuples(st.integers(64, 2000), st.sets(st.integers(0, 6), min_size=2).map(sorted).map(tuple))


def whole(space: Subspace, psi: np.ndarray) -> np.ndarray:
    return space.recover(psi, slice(0, space.elements))


def test_words_are_those_of_splitmix64() -> None:
    """Of the generator's reference implementation (Vigna), started from 0 and from 1234567."""
    assert [int(word) for word in splitmix64(0, np.arange(3))] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F,
    ]  # fmt: skip
    assert [int(word) for word in splitmix64(1234567, np.arange(2))] == [6457827717110365317, 3203168211198807973]


def test_tables_have_keys_of_their_own() -> None:
    assert hash_key(SEED, "gmf") != hash_key(SEED, "mlp")
    assert hash_key(SEED, "gmf") == hash_key(SEED, "gmf")


@given(SIZES)
def test_bucket_counts_divide_each_other_and_fit_the_memory(sizes: tuple[int, tuple[int, ...]]) -> None:
    elements, capacities = sizes
    counts = bucket_counts(elements, capacities)
    for p, buckets in zip(capacities, counts, strict=True):
        assert 0 < buckets <= elements / 2**p
        assert buckets > elements / 2**p - 2 ** (max(capacities) - p)
    hashed = [buckets for p, buckets in zip(capacities, counts, strict=True) if p]
    assert all(larger % smaller == 0 for larger, smaller in zip(hashed, hashed[1:], strict=False))


def test_less_memory_than_one_value_is_refused() -> None:
    with pytest.raises(ParameterError, match="cannot be held"):
        bucket_counts(31, (0, 5))


@given(SIZES, KEYS)
def test_a_smaller_space_is_a_larger_one_folded(sizes: tuple[int, tuple[int, ...]], key: int) -> None:
    elements, capacities = sizes
    counts = [buckets for p, buckets in zip(capacities, bucket_counts(elements, capacities), strict=True) if p]
    spaces = [Subspace(elements, buckets, key) for buckets in counts]
    theta = np.random.default_rng(key % 1000).standard_normal(elements)
    for space in spaces:
        np.testing.assert_allclose(fold(spaces[0].sums(theta), space.buckets), space.sums(theta), atol=1e-4)
        np.testing.assert_array_equal(fold(spaces[0].counts(), space.buckets), space.counts())
    # the column space of a smaller one lies within the larger ones' (definition 4.1)
    psi = np.random.default_rng(1).standard_normal(counts[-1])
    expected = whole(spaces[-1], psi)
    for space in spaces:
        np.testing.assert_array_equal(whole(space, unfold(psi, space.buckets)), expected)


@given(st.integers(50, 3000), st.integers(1, 5), KEYS)
def test_projection_is_the_nearest_and_recovery_its_adjoint(elements: int, p: int, key: int) -> None:
    space = Subspace(elements, *bucket_counts(elements, (p,)), key)
    rng = np.random.default_rng(key % 1000)
    theta, psi = rng.standard_normal(elements).astype(np.float32), rng.standard_normal(space.buckets)
    totals, counts = space.sums(theta), space.counts()
    np.testing.assert_allclose(totals @ psi, theta.astype(np.float64) @ whole(space, psi), rtol=1e-4, atol=1e-3)
    assert counts.sum() == elements
    # what is in the space stays as it is, but for buckets that no element falls into
    np.testing.assert_allclose(space.project(whole(space, psi)), np.where(counts > 0, psi, 0), atol=1e-6)
    # what is left over has nothing in the space: S psi is the nearest there is (eq. 3)
    rest = theta - whole(space, space.project(theta))
    np.testing.assert_allclose(space.sums(rest), 0, atol=1e-4)


def test_recovered_values_are_right_on_average_over_keys() -> None:
    """E[g(a) sum_b g(b) theta[b] over b in a's bucket] = theta[a]: signs cancel what shares the bucket."""
    elements, keys = 60, 4000
    theta = np.linspace(-1, 1, elements)
    made = np.zeros(elements)
    for key in range(keys):
        space = Subspace(elements, 15, hash_key(key.to_bytes(32), "gmf"))
        made += whole(space, space.sums(theta))
    # one draw's variance is at most sum(theta^2) / buckets
    error = np.sqrt((theta @ theta) / 15 / keys)
    assert np.abs(made / keys - theta).max() < 5 * error


def test_buckets_and_signs_are_even() -> None:
    space = Subspace(2**18, 2**8, hash_key(SEED, "mlp"))
    places, signs = space.places(np.arange(space.elements))
    counts = np.bincount(places, minlength=space.buckets)
    # chi-squared with 255 degrees of freedom
    assert abs(((counts - 1024) ** 2 / 1024).sum() - 255) < 6 * np.sqrt(2 * 255)
    assert abs(signs.sum()) < 6 * np.sqrt(space.elements)
    assert abs((signs * (places % 2 * 2 - 1)).sum()) < 6 * np.sqrt(space.elements)


def test_the_whole_vector_is_not_hashed() -> None:
    theta = np.arange(10, dtype=np.float32)
    space = Subspace(10, 10, 3)
    np.testing.assert_array_equal(space.project(theta), theta)
    np.testing.assert_array_equal(space.recover(theta, slice(2, 5)), theta[2:5])


def test_rows_are_recovered_without_memory_for_all_elements() -> None:
    space = Subspace(50_000_000, 1000, 5)
    tracemalloc.start()
    space.places(np.arange(49_000_000, 49_001_000))
    space.recover(np.zeros(1000), slice(7_000_000, 7_001_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
