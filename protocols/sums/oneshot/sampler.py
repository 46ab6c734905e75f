"""Secret randomness of a one-shot round: discrete Gaussians and uniform residues. The source is an argument.

Gaussians come from a cumulative table (Peikert, CRYPTO 2010): a word of 63 random bits is compared with
EVERY entry of the table, and the size of the sample is the number of entries that it reaches; the 64th bit is the sign.
No branch and no address depends on the sample. The distribution is within 2^-57 of the discrete Gaussian
(statistical distance), tail included.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.sums.oneshot.parameters import SIGMA

__all__ = ["LARGEST", "Randomness", "gaussian", "gaussian_table", "uniform_residues"]

Randomness = Callable[[int], bytes]
"""random(n) -> n secret random bytes; `os.urandom` except in tests and test vectors."""

_WORD_BITS: Final = 63
_PIECE: Final = 8192
"""Samples at a time, so that words and counts stay in the processor's cache."""


@cache
def gaussian_table() -> tuple[int, ...]:
    """Return floor(2^63 * Pr[|X| <= k]) for k = 0, 1, ... up to the last entry below 2^63 - 1.

    Pr[X = x] is proportional to exp(-x^2 / (2 SIGMA^2)), computed with 60 digits.
    """
    with localcontext() as context:
        context.prec = 60
        width = 2 * Decimal(str(SIGMA)) ** 2
        weights = [(1 if x == 0 else 2) * (-(Decimal(x) ** 2) / width).exp() for x in range(40 * int(SIGMA))]
        whole, table, reached = sum(weights), [], Decimal(0)
        for weight in weights:
            reached += weight
            table.append(int(2**_WORD_BITS * reached / whole))
    return tuple(entry for entry in table if entry < 2**_WORD_BITS - 1)


LARGEST: Final = len(gaussian_table())
"""Largest size of a sample."""


def gaussian(count: int, random: Randomness) -> NDArray[np.int64]:
    """Return `count` samples of the discrete Gaussian of deviation `SIGMA`, int64; takes 8 bytes each of `random`."""
    words = np.frombuffer(random(8 * count), "<u8")
    samples = np.empty(count, np.int64)
    table = np.array(gaussian_table(), np.int64)
    for start in range(0, count, _PIECE):
        piece = words[start : start + _PIECE]
        values, sizes = (piece >> np.uint64(1)).astype(np.int64), np.zeros(piece.size, np.uint8)
        for entry in table:
            sizes += (values >= entry).view(np.uint8)
        negative = (piece & np.uint64(1)).astype(np.int64)
        samples[start : start + _PIECE] = sizes * (1 - 2 * negative)
    return samples


def uniform_residues(count: int, prime: int, random: Randomness) -> NDArray[np.uint32]:
    """Return `count` uniform residues modulo a prime of 32 bits: words of 32 bits, those beyond it drawn again."""
    words = np.frombuffer(random(4 * count), "<u4").astype(np.uint32)
    beyond = np.flatnonzero(words >= prime)
    while beyond.size:
        words[beyond] = np.frombuffer(random(4 * beyond.size), "<u4")
        beyond = beyond[words[beyond] >= prime]
    return words
