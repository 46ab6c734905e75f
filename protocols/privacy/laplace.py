"""The Laplace noise of one device, as RFRec and PFedCLR publish it: each value is clipped and gets its own draw.

*Noise.* Every coordinate gets an independent draw. One draw for all coordinates, as in RFRec's released code, hides
only the vector's mean: every difference between two coordinates is sent unchanged.

Values are on a grid g, a power of two, and the noise is discrete Laplace on the same grid (Ghosh, Roughgarden and
Sundararajan, STOC 2009): P(z) proportional to exp(-|z| / t) over the integers z. With values rounded to whole steps
within +-clip, and a scale rounded up to a whole number of steps, the guarantee is pure epsilon-DP with epsilon at most
2 * clip / scale per coordinate and delta = 0. Adding float Laplace noise to float values, or sampling by inversion,
-t log(u), has no such guarantee: the set of possible results depends on the input (Mironov, "On Significance of the
Least Significant Bits for Differential Privacy", CCS 2012).

*Exact sampling.* Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020),
algorithms 1 and 2, on whole arrays. Every decision compares integers with as many uniform random bits as it needs;
there is no logarithm, no exponential and no rounding. The distribution is therefore exact if the bits are uniform. The
bits are an AES-256-CTR keystream with a new key.

*Assumptions.* The entropy is uniform and the keystream of AES-256 is indistinguishable from random, so privacy holds
against computationally bounded adversaries (Mironov et al., CRYPTO 2009); and nobody measures the time of a draw, which
depends on the sum of the noise over the vector, not on the values.

*Cost.* The guarantee is about what one client sends, against everyone who sees it. ANY two inputs are neighbours: the
user's whole contribution is replaced, so every coordinate may change by 2 * clip, in every round. Secure sums, sampling
and other clients' noise do not reduce the cost: local privacy does not rely on them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Final, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocols.crypto.keys import KEY_BYTES
from protocols.errors import ParameterError
from protocols.layout import Floats

MAX_SCALE: Final = 2**21
"""Largest scale for which every product of a scale, a turn of `_bernoulli_exp` and a word of 32 bits fits 64 bits.

Turns stay below 2**11, which they exceed with probability 1 / 2048!, below 2**-19000.
"""
_WORD_BITS: Final = np.uint64(32)
_PER_DRAW: Final = 1.62  # candidates drawn per number: a little over 1 / (1 - 1/e), since a share of 1 - 1/e is kept

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


_STEPS: Final = 20
"""Scales are 2**20 to 2**21 steps, so rounding a scale up to a whole number of steps adds less than one millionth."""
_TAIL: Final = 40  # scales between the clip and the bound of noisy values
_MAX_RATIO: Final = 2.0**31
"""Largest clip / scale: every noisy value is then a whole number of steps below 2**53, exact in float64."""
_RANGE: Final = (1e-100, 1e100)  # smallest and largest clip and scale


class LaplaceNoise(BaseModel):
    """The clip and noise of each value. A release of n values costs n * `epsilon`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip: float = Field(gt=0, description="Bound on the size of each value before noise.")
    scale: float = Field(gt=0, description="Scale b of the Laplace noise; its standard deviation is b * sqrt(2).")

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        low, high = _RANGE
        if not (low <= self.clip <= high and low <= self.scale <= high):
            raise ValueError(f"clip and scale must be in {low:g} .. {high:g}, got {self.clip:g} and {self.scale:g}")
        if self.clip > _MAX_RATIO * self.scale:
            raise ValueError(f"noise of scale {self.scale:g} is too small for values up to {self.clip:g}")
        return self

    @property
    def bound(self) -> float:
        """Bound to which noisy values are clipped; they exceed it with probability below e**-40."""
        return self.clip + _TAIL * self.scale

    @property
    def epsilon(self) -> float:
        """Epsilon of ONE value sent once: 2 * clip / scale."""
        return 2 * self.clip / self.scale

    @property
    def grid(self) -> float:
        """The step of the grid of noisy values, a power of two: scale / 2**21 < grid <= scale / 2**20."""
        return 2.0 ** (math.frexp(self.scale)[1] - 1 - _STEPS)


def refuse_exact_sums(noise: LaplaceNoise | None, setting: str, exact: bool) -> None:
    """Raise `ValueError` if a task with noise also sums its clients' data without: `setting` says so, if `exact`."""
    if noise is not None and exact:
        raise ValueError(
            f"{setting} sums the same data without noise, so the epsilon of the noise would promise nothing: "
            "leave one of the two out"
        )


def privatise(values: Floats, noise: LaplaceNoise, entropy: Callable[[int], bytes] = os.urandom) -> tuple[Floats, int]:
    """Return `values` (n,) clipped and with noise, float64 (n,) within +-`noise.bound`, and how many were clipped.

    The number includes values beyond `clip` and noisy values beyond `bound`, which are very unlikely; clipping these is
    post-processing. The number depends on the values without noise: keep it on the device.

    entropy: n -> n secret random bytes, different in every call; called once, for 32 bytes. Raises `ParameterError` for
    values that are not finite (training diverged) or not a vector.
    """
    if values.ndim != 1:
        raise ParameterError(f"noise is added to a vector, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ParameterError("noise cannot be added to values that are not finite: training diverged")
    grid = noise.grid
    most, bound = math.floor(noise.clip / grid), math.floor(noise.bound / grid)
    clipped = int(np.count_nonzero(np.abs(values) > noise.clip))
    steps = np.rint(np.clip(values, -noise.clip, noise.clip) / grid).astype(np.int64)
    noisy = np.clip(steps, -most, most)  # rounding to the grid may exceed the clip
    noisy += discrete_laplace(entropy(KEY_BYTES), math.ceil(noise.scale / grid), values.size)
    clipped += int(np.count_nonzero(np.abs(noisy) > bound))
    return np.clip(noisy, -bound, bound).astype(np.float64) * np.float64(grid), clipped
