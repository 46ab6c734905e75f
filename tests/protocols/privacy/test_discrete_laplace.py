"""Draws follow the exact discrete Laplace distribution; decisions equal those with infinite precision."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from protocols.errors import ParameterError
from protocols.privacy import laplace as module
from protocols.privacy.laplace import MAX_SCALE, discrete_laplace

KEY = bytes(range(32))


def law(scale: int, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(z) = tanh(1 / 2t) exp(-|z| / t)."""
    return np.tanh(0.5 / scale) * np.exp(-np.abs(numbers) / scale)


@pytest.mark.parametrize("scale", [1, 2, 3, 17])
def test_how_often_each_number_comes(scale: int) -> None:
    count = 200_000
    drawn = discrete_laplace(KEY, scale, count)
    inner = np.arange(-5 * scale, 5 * scale + 1)
    seen = [np.count_nonzero(drawn == z) for z in inner]
    expected = law(scale, inner) * count
    beyond = np.count_nonzero(np.abs(drawn) > 5 * scale)
    assert stats.chisquare([*seen, beyond], [*expected, count - expected.sum()]).pvalue > 1e-3


@pytest.mark.parametrize("scale", [2**20, 1_342_177, MAX_SCALE])
def test_the_law_of_large_scales(scale: int) -> None:
    drawn = discrete_laplace(KEY, scale, 200_000) / scale
    assert stats.kstest(drawn, stats.laplace.cdf).pvalue > 1e-3
    assert drawn.mean() == pytest.approx(0, abs=4 * np.sqrt(2 / drawn.size))
    assert np.abs(drawn).mean() == pytest.approx(1, abs=4 / np.sqrt(drawn.size))
    for size in (2, 4, 6, 8):
        share = np.exp(-size)
        seen = np.count_nonzero(np.abs(drawn) > size)
        assert seen == pytest.approx(share * drawn.size, abs=4 * np.sqrt(share * drawn.size))


def test_zero_has_no_sign() -> None:
    drawn = discrete_laplace(KEY, 1, 100_000)
    expected = np.tanh(0.5) * drawn.size
    assert np.count_nonzero(drawn == 0) == pytest.approx(expected, abs=4 * np.sqrt(expected))


def test_draws_are_independent() -> None:
    drawn = discrete_laplace(KEY, MAX_SCALE, 100_000) / MAX_SCALE
    for lag in (1, 2, 50_000):
        assert np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1] == pytest.approx(0, abs=4 / np.sqrt(drawn.size - lag))
        sizes = np.abs(drawn)
        assert np.corrcoef(sizes[:-lag], sizes[lag:])[0, 1] == pytest.approx(0, abs=4 / np.sqrt(drawn.size - lag))


@pytest.mark.parametrize("count", [0, 1, 7, 5_000])
def test_as_many_as_asked_for_and_the_same_from_the_same_key(count: int) -> None:
    drawn = discrete_laplace(KEY, 1000, count)
    assert (drawn.shape, drawn.dtype) == ((count,), np.int64)
    assert np.array_equal(drawn, discrete_laplace(KEY, 1000, count))
    if count > 1:
        assert not np.array_equal(drawn, discrete_laplace(bytes(32), 1000, count))


@pytest.mark.parametrize(("key", "scale"), [(bytes(16), 5), (KEY, 0), (KEY, MAX_SCALE + 1)])
def test_what_cannot_be_drawn_is_refused(key: bytes, scale: int) -> None:
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
    below = module._bernoulli(GivenWords(*words), np.array([numerator], np.uint64), np.uint64(denominator))  # type: ignore[arg-type]
    assert below[0] == (drawn < Fraction(numerator, denominator))


def test_words_that_would_favour_some_remainders_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2**20 + 1
    whole = 2**32 // limit * limit
    bits = module._Bits(KEY)
    monkeypatch.setattr(bits, "words", lambda _: np.array([5, whole - 1, whole, 2**32 - 1], np.uint64))
    assert bits.below(limit, 4).tolist() == [5, limit - 1]


@pytest.mark.parametrize("numerator", [0, 1, 250, 700, 1000])
def test_decay(numerator: int) -> None:
    count = 100_000
    bits = module._Bits(KEY)
    kept = module._bernoulli_exp(bits, np.full(count, numerator, np.uint64), np.uint64(1000)).mean()
    chance = np.exp(-numerator / 1000)
    assert kept == pytest.approx(chance, abs=4 * np.sqrt(chance * (1 - chance) / count))
