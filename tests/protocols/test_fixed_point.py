from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import BudgetError, ParameterError
from protocols.fixed_point import FixedPoint

BITS = st.integers(16, 64)


@given(BITS, st.floats(1e-3, 1e3), st.integers(1, 40), st.integers(0, 2**32 - 1), st.booleans())
def test_sums_within_the_bound_survive_any_wrap_around(
    bits: int, bound: float, clients: int, seed: int, stochastic: bool
) -> None:
    """Every contribution may be as large as the bound, so partial sums wrap; the true sum stays within it."""
    rng = np.random.default_rng(seed)
    ring = FixedPoint.widest(bits, bound, 2 * clients)
    half = rng.uniform(-bound, bound, (clients, 7))
    vectors = np.concatenate([half, np.vstack([-half[1:], np.zeros((1, 7))])])  # sums to half[0]
    total = np.zeros(7, ring.dtype)
    for vector in vectors:
        element, clipped = ring.encode(vector, bound, rng if stochastic else None)
        assert clipped == 0
        total = ring.reduce(total + element)
    step = 1.0 / ring.scale
    tolerance = 2 * clients * step * (1.0 if stochastic else 0.5) + 1e-9 * bound
    assert np.abs(ring.decode(total) - half[0]).max() <= tolerance


@given(BITS, st.floats(-1, 1))
def test_one_value_rounds_to_nearest(bits: int, value: float) -> None:
    ring = FixedPoint.widest(bits, 1.0)
    element, _ = ring.encode(np.array([value]), 1.0)
    assert element.dtype == ring.dtype
    assert abs(ring.decode(element)[0] - value) <= 0.5 / ring.scale


@pytest.mark.parametrize(("bits", "dtype"), [(16, "u2"), (17, "u4"), (32, "u4"), (33, "u8"), (64, "u8")])
def test_the_narrowest_integers_are_used(bits: int, dtype: str) -> None:
    assert FixedPoint(bits, 1.0, 16.0).dtype == np.dtype(dtype)


def test_stochastic_rounding_is_unbiased_and_nearest_is_not() -> None:
    ring, values = FixedPoint(16, 1.0, 4.0), np.full(40_000, 0.3)
    drawn, _ = ring.encode(values, 1.0, np.random.default_rng(1))
    assert abs(ring.decode(drawn).mean() - 0.3) < 0.005
    assert set(drawn.tolist()) == {1, 2}
    nearest, _ = ring.encode(values, 1.0)
    assert ring.decode(nearest).mean() == 0.25


def test_clipping_is_counted() -> None:
    ring = FixedPoint(32, 10.0, 1024.0)
    element, clipped = ring.encode(np.array([0.5, 2.0, -3.0, 1.0]), 1.0)
    assert clipped == 2
    assert ring.decode(element).tolist() == [0.5, 1.0, -1.0, 1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ParameterError, match="not finite"):
        FixedPoint(32, 1.0, 8.0).encode(np.array([0.0, bad]), 1.0)


@pytest.mark.parametrize(
    ("bits", "bound", "scale"), [(15, 1, 1), (65, 1, 1), (32, 0, 1), (32, -1, 1), (32, np.inf, 1), (32, 1, 0)]
)
def test_parameters_that_make_no_ring(bits: int, bound: float, scale: float) -> None:
    with pytest.raises(ParameterError):
        FixedPoint(bits, bound, scale)


def test_a_budget_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(BudgetError, match=r"it would fit with 17 bits, or a scale of 2\^12") as refusal:
        FixedPoint(16, 3.0, 2.0**14)
    assert "16 bits" in str(refusal.value)
    FixedPoint(17, 3.0, 2.0**14)
    FixedPoint(16, 3.0, 2.0**12)
    with pytest.raises(BudgetError, match="a scale of"):
        FixedPoint(64, 3.0, 2.0**64)


@given(BITS, st.floats(1e-3, 1e3), st.integers(0, 10_000))
def test_widest_leaves_room_for_rounding(bits: int, bound: float, contributions: int) -> None:
    ring = FixedPoint.widest(bits, bound, contributions)
    ring.require(contributions)
    with pytest.raises(BudgetError, match="no room"):
        ring.require(ring.headroom + 1)


def test_widest_refuses_what_cannot_fit() -> None:
    with pytest.raises(BudgetError, match="rounding errors of .* alone"):
        FixedPoint.widest(16, 1.0, 2**15)
    with pytest.raises(ParameterError):
        FixedPoint.widest(16, 0.0)
    with pytest.raises(BudgetError, match="2\\^53"):
        FixedPoint(64, 1.0, 2.0**60).encode(np.zeros(1), 1.0)


def test_decoding_refuses_elements_of_another_ring() -> None:
    ring = FixedPoint(20, 1.0, 8.0)
    with pytest.raises(ParameterError, match="uint32"):
        ring.decode(np.zeros(1, np.uint64))
    with pytest.raises(BudgetError, match="reduce it first"):
        ring.decode(np.array([1 << 20], np.uint32))
    with pytest.raises(ParameterError, match="clip"):
        ring.encode(np.zeros(1), np.nan)
