"""Secret randomness of a one-shot round: discrete Gaussians and uniform residues. The source is an argument.

Gaussians come from a cumulative table in constant time (`protocols.crypto.random`), within 2^-57 of the discrete
Gaussian (statistical distance), tail included.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.random import Randomness, cumulative_table, symmetric_samples
from protocols.sums.oneshot.parameters import SIGMA

__all__ = ["LARGEST", "gaussian", "gaussian_table", "uniform_residues"]


@cache
def gaussian_table() -> tuple[int, ...]:
    """Return floor(2^63 * Pr[|X| <= k]) for k = 0, 1, ... up to the last entry below 2^63 - 1.

    Pr[X = x] is proportional to exp(-x^2 / (2 SIGMA^2)), computed with 60 digits.
    """
    with localcontext() as context:
        context.prec = 60
        width = 2 * Decimal(str(SIGMA)) ** 2
        return cumulative_table(
            (1 if x == 0 else 2) * (-(Decimal(x) ** 2) / width).exp() for x in range(40 * int(SIGMA))
        )


LARGEST: Final = len(gaussian_table())
"""Largest size of a sample."""


def gaussian(count: int, random: Randomness) -> NDArray[np.int64]:
    """Return `count` samples of the discrete Gaussian of deviation `SIGMA`, int64; takes 8 bytes each of `random`."""
    return symmetric_samples(count, gaussian_table(), random)


def uniform_residues(count: int, prime: int, random: Randomness) -> NDArray[np.uint32]:
    """Return `count` uniform residues modulo a prime of 32 bits: words of 32 bits, those beyond it drawn again."""
    words = np.frombuffer(random(4 * count), "<u4").astype(np.uint32)
    beyond = np.flatnonzero(words >= prime)
    while beyond.size:
        words[beyond] = np.frombuffer(random(4 * beyond.size), "<u4")
        beyond = beyond[words[beyond] >= prime]
    return words
