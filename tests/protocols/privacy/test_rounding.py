"""Random rounding: the bound holds always, the mean is kept where there is room, and what is refused."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.errors import ParameterError
from protocols.privacy.rounding import longest_norm, norm_of, round_within


@given(
    values=arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)),
    bound=st.floats(20, 5000),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=300)
def test_the_bound_holds_and_zeros_stay(values: np.ndarray, bound: float, seed: int) -> None:
    steps, scale = round_within(values, bound, np.random.default_rng(seed).bytes)
    assert steps.dtype == np.int64
    assert int((steps**2).sum()) <= bound**2 * (1 + 1e-9)
    assert not steps[values == 0].any()
    assert 0 < scale <= 1
    assert (np.abs(steps - values * scale) < 1).all()
    fractions = int(np.count_nonzero(values != np.rint(values)))
    if norm_of(values) <= longest_norm(bound, fractions):
        assert scale == 1.0


@given(values=arrays(np.int64, 12, elements=st.integers(-50, 50)), seed=st.integers(0, 99))
def test_whole_numbers_within_the_bound_are_kept_and_need_no_room(values: np.ndarray, seed: int) -> None:
    bound = math.sqrt(int((values**2).sum()))
    steps, scale = round_within(values.astype(float), bound, np.random.default_rng(seed).bytes)
    assert np.array_equal(steps, values)
    assert scale == 1.0


def test_rounding_is_right_in_the_mean() -> None:
    """Without rounding again the mean is exact. Within a bound that is seldom passed it is as good as exact."""
    values, rng = np.array([0.25, -1.75, 3.5, 0.0, 7.999]), np.random.default_rng(4)
    found = np.array([round_within(values, 50.0, rng.bytes)[0] for _ in range(20_000)])
    assert np.abs(found.mean(axis=0) - values).max() < 5 * 0.5 / math.sqrt(len(found))
    assert set(found[:, 1]) == {-2, -1}


def test_the_scaled_vector_is_the_mean_of_a_vector_that_is_too_long() -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal(400)
    rounded = [round_within(values * 1e4, 200.0, rng.bytes) for _ in range(300)]
    scale = rounded[0][1]
    assert scale * 1e4 * norm_of(values) == pytest.approx(longest_norm(200.0, 400))
    mean = np.mean([steps for steps, _ in rounded], axis=0)
    along = float(mean @ values) / norm_of(values) / (scale * 1e4 * norm_of(values))
    assert 0.98 < along <= 1.001


def test_a_rounding_beyond_the_bound_is_done_again() -> None:
    asked: list[int] = []
    up, down = bytes(8), b"\xff" * 8  # of a draw of 0 a fraction is rounded up, of one near 1 down

    def random(count: int) -> bytes:
        asked.append(count)
        return (up if len(asked) < 4 else down) * (count // 8)

    values = np.full(4, 0.5)
    steps, scale = round_within(values, 1.9, random)
    assert asked == [32] * 4
    assert steps.tolist() == [0] * 4
    assert scale < 1
    assert round_within(np.zeros(3), 5.0, random)[0].tolist() == [0] * 3


def test_a_source_that_always_rounds_up_ends() -> None:
    with pytest.raises(ParameterError, match="4 values were not rounded within a norm of 1.9 steps in 128 tries"):
        round_within(np.full(4, 0.5), 1.9, bytes)


def test_at_least_two_roundings_of_five_are_within_the_longest_norm() -> None:
    rng = np.random.default_rng(6)
    for values, bound in ((4, 6.0), (100, 40.0), (3000, 170.0)):
        vector = rng.standard_normal(values)
        vector *= longest_norm(bound, values) / norm_of(vector)
        draws = np.floor(vector + rng.random((4000, values)))
        assert (np.square(draws).sum(axis=1) <= bound**2).mean() > 0.38


def test_what_cannot_be_rounded() -> None:
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(ParameterError, match="not finite"):
            round_within(np.array([1.0, wrong]), 64.0, os.urandom)
    assert longest_norm(5.0, 0) == 5.0
    assert longest_norm(1.0, 100) == -1.0
    with pytest.raises(ParameterError, match="100 values cannot be rounded within a norm of 1 steps"):
        round_within(np.full(100, 0.5), 1.0, os.urandom)
