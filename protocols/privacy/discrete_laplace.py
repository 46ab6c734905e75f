"""Exact sampling of the discrete Laplace distribution: P(z) proportional to exp(-|z| / t) over the integers z.

Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020), algorithms 1 and 2, on
whole arrays. Every decision compares integers with as many uniform random bits as it needs; there is no logarithm, no
exponential and no rounding. The distribution is therefore exact if the bits are uniform. Sampling by inversion,
-t log(u), leaves gaps that reveal the value under the noise (Mironov, CCS 2012).

The bits are an AES-256-CTR keystream with a new key: an observer who cannot distinguish it from random bits cannot
distinguish the noise from the exact distribution.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["KEY_BYTES", "MAX_SCALE", "discrete_laplace"]

KEY_BYTES: Final = 32
MAX_SCALE: Final = 2**21
"""Largest scale for which every product of a scale, a turn of `_bernoulli_exp` and a word of 32 bits fits 64 bits.

Turns stay below 2**11, which they exceed with probability 1 / 2048!, below 2**-19000.
"""
_WORD_BITS: Final = np.uint64(32)
_PER_DRAW: Final = 1.62
"""Candidates drawn per number: a little over 1 / (1 - 1/e), since a share of 1 - 1/e is kept."""

Numbers = NDArray[np.uint64]


def discrete_laplace(key: bytes, scale: int, count: int) -> NDArray[np.int64]:
    """Return independent draws, int64 (count,), from P(z) = tanh(1 / 2t) exp(-|z| / t) with t = `scale`.

    key: 32 secret random bytes, used for this call only. Raises `ParameterError` for another length, or a scale outside
    1..2**21.
    """
    if len(key) != KEY_BYTES:
        raise ParameterError(f"noise needs a key of {KEY_BYTES} bytes, got {len(key)}")
    if not 1 <= scale <= MAX_SCALE:
        raise ParameterError(f"the scale must be 1 to {MAX_SCALE} steps, got {scale}")
    bits = _Bits(key)
    drawn = [np.zeros(0, np.int64)]
    missing = count
    while missing > 0:
        sizes = _sizes(bits, scale, int(_PER_DRAW * missing) + 16)
        negative = bits.words(sizes.size) & np.uint64(1) == 1
        kept = ~(negative & (sizes == 0))  # otherwise zero would be drawn twice as often, as 0 and as -0
        draws = np.where(negative, -sizes, sizes)[kept][:missing]
        drawn.append(draws)
        missing -= draws.size
    return np.concatenate(drawn)


def _sizes(bits: _Bits, scale: int, candidates: int) -> NDArray[np.int64]:
    """Return draws of P(x) proportional to exp(-x / scale) over x = 0, 1, ..., one for each remainder that is kept."""
    remainders = bits.below(scale, candidates)
    remainders = remainders[_bernoulli_exp(bits, remainders, np.uint64(scale))]
    quotients = np.zeros(remainders.size, np.int64)
    running = np.arange(remainders.size)
    one = np.uint64(1)
    while running.size:
        running = running[_bernoulli_exp(bits, np.ones(running.size, np.uint64), one)]
        quotients[running] += 1
    return remainders.astype(np.int64) + scale * quotients


def _bernoulli_exp(bits: _Bits, numerators: Numbers, denominator: np.uint64) -> NDArray[np.bool_]:
    """Return True with probability exp(-numerator / denominator), for numerators up to the denominator.

    The turn at which a run of Bernoulli(g), Bernoulli(g / 2), Bernoulli(g / 3), ... first fails is odd with probability
    exp(-g): the alternating series (von Neumann 1951; Canonne et al., algorithm 1).
    """
    result = np.zeros(numerators.size, np.bool_)
    running = np.arange(numerators.size)
    turn = 1
    while running.size:
        succeeded = _bernoulli(bits, numerators[running], np.uint64(turn) * denominator)
        if turn % 2:
            result[running[~succeeded]] = True
        running = running[succeeded]
        turn += 1
    return result


def _bernoulli(bits: _Bits, numerators: Numbers, denominator: np.uint64) -> NDArray[np.bool_]:
    """Return True with probability numerator / denominator: whether a uniform real number is below it.

    32 bits of the number are drawn. Where they do not decide, the comparison is repeated for the remainder.
    """
    drawn = bits.words(numerators.size) * denominator
    wanted = numerators << _WORD_BITS
    below = drawn + denominator <= wanted
    undecided = np.flatnonzero(~below & (drawn < wanted))
    if undecided.size:
        below[undecided] = _bernoulli(bits, wanted[undecided] - drawn[undecided], denominator)
    return below


class _Bits:
    """A source of uniform words from an AES-256-CTR keystream."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Numbers:
        """Return words, uint64 (count,), uniform in [0, 2**32)."""
        return np.frombuffer(self._stream.update(bytes(4 * count)), "<u4").astype(np.uint64)

    def below(self, limit: int, count: int) -> Numbers:
        """Return at most `count` numbers, uint64, uniform in [0, limit), by rejection sampling."""
        words = self.words(count)
        return words[words < 2**32 // limit * limit] % np.uint64(limit)
