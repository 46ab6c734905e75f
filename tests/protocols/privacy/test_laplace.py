"""Clipping and Laplace noise, and the exact discrete distribution that it is drawn from."""

from __future__ import annotations

import math
import os
from fractions import Fraction

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from protocols.errors import ParameterError
from protocols.privacy import laplace
from protocols.privacy.laplace import MAX_SCALE, LaplaceNoise, discrete_laplace, privatise

NOISE = LaplaceNoise(clip=0.2, scale=0.04)
SIZES = st.floats(1e-4, 1e4)


def fixed(count: int) -> bytes:
    return bytes(range(count))


def noises(count: int = 100_000) -> NDArray[np.float64]:
    return privatise(np.zeros(count), NOISE, fixed)[0]


def test_the_noise_is_laplace_of_the_scale_that_was_asked_for() -> None:
    drawn = noises()
    assert scipy.stats.kstest(drawn, scipy.stats.laplace(scale=NOISE.scale).cdf).pvalue > 1e-3
    assert drawn.mean() == pytest.approx(0, abs=4 * NOISE.scale * np.sqrt(2 / drawn.size))
    assert np.abs(drawn).mean() == pytest.approx(NOISE.scale, abs=4 * NOISE.scale / np.sqrt(drawn.size))


def test_values_stay_where_they_are_but_for_the_noise_or_are_moved_to_the_clip_and_counted() -> None:
    values = np.linspace(-0.2, 0.2, 1000)
    noisy, moved = privatise(values, NOISE, fixed)
    assert moved == 0
    assert np.abs(noisy - values - noises(1000)).max() <= NOISE.grid / 2
    values = np.array([0.2, 0.2000001, -5.0, 0.1, -0.2, 1e300])
    noisy, moved = privatise(values, NOISE, fixed)
    assert moved == 3
    assert np.array_equal(noisy, privatise(np.clip(values, -0.2, 0.2), NOISE, fixed)[0])


def test_noise_that_would_leave_the_bound_is_held_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    far = np.array([2**52, -(2**52), 0])
    monkeypatch.setattr(laplace, "discrete_laplace", lambda _key, _scale, _count: far)
    noisy, moved = privatise(np.array([0.1, 0.1, 9.0]), NOISE)
    assert moved == 3
    assert np.abs(noisy).max() <= NOISE.bound
    assert np.array_equal(np.sign(noisy), [1, -1, 1])
    assert np.abs(noisy[:2]) == pytest.approx(NOISE.bound)


@given(clip=SIZES, scale=SIZES, seed=st.integers(0, 2**32 - 1))
def test_noisy_values_lie_on_the_grid_whatever_went_in(clip: float, scale: float, seed: int) -> None:
    noise = LaplaceNoise(clip=clip, scale=scale)
    values = np.random.default_rng(seed).normal(0, clip, 50)
    noisy, _ = privatise(values, noise, lambda _: seed.to_bytes(32, "big"))
    assert np.array_equal(noisy / noise.grid, np.rint(noisy / noise.grid))
    assert np.abs(noisy).max() <= noise.bound
    assert np.log2(noise.grid) == np.rint(np.log2(noise.grid))
    assert noise.scale / 2**21 < noise.grid <= noise.scale / 2**20


@given(clip=SIZES, scale=SIZES)
def test_epsilon_holds_exactly(clip: float, scale: float) -> None:
    """The largest distance of two inputs in steps, divided by the scale in steps, is at most 2 * clip / scale."""
    noise = LaplaceNoise(clip=clip, scale=scale)
    asked: list[int] = []

    def none(_key: bytes, steps: int, count: int) -> NDArray[np.int64]:
        asked.append(steps)
        return np.zeros(count, np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laplace, "discrete_laplace", none)
        highest, lowest = privatise(np.array([10 * clip, -10 * clip]), noise)[0]
    furthest = (Fraction(highest) - Fraction(lowest)) / Fraction(noise.grid)
    assert furthest / asked[0] <= 2 * Fraction(clip) / Fraction(scale)
    assert asked[0] * Fraction(noise.grid) <= Fraction(scale) * (1 + Fraction(1, 2**20))


def test_the_entropy_alone_decides() -> None:
    values = np.linspace(-1, 1, 100)
    first, _ = privatise(values, NOISE, fixed)
    assert np.array_equal(first, privatise(values, NOISE, lambda count: fixed(32) if count == 32 else b"")[0])
    assert not np.array_equal(first, privatise(values, NOISE)[0]), "without one it is the system's"
    assert not np.array_equal(privatise(values, NOISE, os.urandom)[0], privatise(values, NOISE, os.urandom)[0])


def test_parameters_that_make_no_sense_are_refused() -> None:
    wrong = [{"clip": clip, "scale": 1.0} for clip in (0.0, -1.0, math.nan, 1e10)]
    wrong += [{"clip": 1.0, "scale": scale} for scale in (0.0, -1.0, math.inf, 1e-320)]
    for parameters in (*wrong, {"clip": 1.0, "scale": 1.0, "shared": True}, {"clip": 1.0}):
        with pytest.raises(ValidationError):
            LaplaceNoise(**parameters)


# --- draws follow the exact discrete Laplace distribution; decisions equal those with infinite precision --------------


KEY = bytes(range(32))


def law(scale: int, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(z) = tanh(1 / 2t) exp(-|z| / t)."""
    return np.tanh(0.5 / scale) * np.exp(-np.abs(numbers) / scale)


@pytest.mark.parametrize("scale", [1, 3, 17])
def test_how_often_each_number_comes(scale: int) -> None:
    count = 200_000
    drawn = discrete_laplace(KEY, scale, count)
    inner = np.arange(-5 * scale, 5 * scale + 1)
    seen = [np.count_nonzero(drawn == z) for z in inner]
    expected = law(scale, inner) * count
    beyond = np.count_nonzero(np.abs(drawn) > 5 * scale)
    assert scipy.stats.chisquare([*seen, beyond], [*expected, count - expected.sum()]).pvalue > 1e-3


@pytest.mark.parametrize("scale", [1_342_177, MAX_SCALE])
def test_the_law_of_large_scales(scale: int) -> None:
    drawn = discrete_laplace(KEY, scale, 200_000) / scale
    assert scipy.stats.kstest(drawn, scipy.stats.laplace.cdf).pvalue > 1e-3
    assert drawn.mean() == pytest.approx(0, abs=4 * np.sqrt(2 / drawn.size))
    assert np.abs(drawn).mean() == pytest.approx(1, abs=4 / np.sqrt(drawn.size))
    for size in (2, 4, 6, 8):
        share = np.exp(-size)
        seen = np.count_nonzero(np.abs(drawn) > size)
        assert seen == pytest.approx(share * drawn.size, abs=4 * np.sqrt(share * drawn.size))


def test_draws_are_independent() -> None:
    drawn = discrete_laplace(KEY, MAX_SCALE, 100_000) / MAX_SCALE
    for lag in (1, 2, 50_000):
        assert np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1] == pytest.approx(0, abs=4 / np.sqrt(drawn.size - lag))
        sizes = np.abs(drawn)
        assert np.corrcoef(sizes[:-lag], sizes[lag:])[0, 1] == pytest.approx(0, abs=4 / np.sqrt(drawn.size - lag))


def test_as_many_as_asked_for_and_the_same_from_the_same_key() -> None:
    for count in (0, 1, 5_000):
        drawn = discrete_laplace(KEY, 1000, count)
        assert (drawn.shape, drawn.dtype) == ((count,), np.int64)
        assert np.array_equal(drawn, discrete_laplace(KEY, 1000, count))
    assert not np.array_equal(drawn, discrete_laplace(bytes(32), 1000, count))


def test_what_cannot_be_noised_or_drawn_is_refused() -> None:
    for values in ([np.nan], [np.inf, 0.0], [[0.0, 1.0]]):
        with pytest.raises(ParameterError):
            privatise(np.array(values), NOISE, fixed)
    for key, scale in ((bytes(16), 5), (KEY, 0), (KEY, MAX_SCALE + 1)):
        with pytest.raises(ParameterError):
            discrete_laplace(key, scale, 1)


class GivenWords:
    """A source of given bits, then zeros."""

    def __init__(self, *words: int) -> None:
        self.words_left = list(words)

    def words(self, count: int) -> NDArray[np.uint64]:
        assert count == 1
        return np.array([self.words_left.pop(0) if self.words_left else 0], np.uint64)


@given(st.data())
def test_a_decision_is_that_of_a_real_number(data: st.DataObject) -> None:
    denominator = data.draw(st.integers(1, MAX_SCALE * 2000))
    numerator = data.draw(st.integers(0, min(denominator, MAX_SCALE)))
    words, rest = [], Fraction(numerator, denominator)
    for _ in range(3):  # words that leave it open, where there are any, so that the next one decides
        rest *= 2**32
        words.append(min(int(rest), 2**32 - 1))
        rest -= int(rest)
    words[data.draw(st.integers(0, 2))] = data.draw(st.integers(0, 2**32 - 1))
    drawn = sum(Fraction(word, 2 ** (32 * place)) for place, word in enumerate(words, 1))
    below = laplace._bernoulli(GivenWords(*words), np.array([numerator], np.uint64), np.uint64(denominator))
    assert below[0] == (drawn < Fraction(numerator, denominator))


def test_words_that_would_favour_some_remainders_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2**20 + 1
    whole = 2**32 // limit * limit
    bits = laplace._Bits(KEY)
    monkeypatch.setattr(bits, "words", lambda _: np.array([5, whole - 1, whole, 2**32 - 1], np.uint64))
    assert bits.below(limit, 4).tolist() == [5, limit - 1]
