"""Secret symmetric integers from a cumulative table, in constant time; the source of randomness is an argument.

Peikert, "An Efficient and Parallel Gaussian Sampler for Lattices" (CRYPTO 2010), section 4.1: a word of 63 random bits
is compared with EVERY entry of the table, and the size of the sample is the number of entries that it reaches; the 64th
bit is the sign. No branch and no address depends on the sample. A table of entries floor(2^63 Pr[|X| <= k]) gives a
distribution within 2^-57 (statistical distance) of that of X, tail included, for up to 64 entries, and within
entries * 2^-63 for longer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Randomness", "cumulative_table", "symmetric_samples"]

Randomness = Callable[[int], bytes]
"""random(n) -> n secret random bytes; `os.urandom` except in tests and test vectors."""

_WORD_BITS: Final = 63
_PIECE: Final = 16384
"""Samples at a time, so that words and counts stay in the processor's cache."""


def cumulative_table(weights: Iterable[Decimal]) -> tuple[int, ...]:
    """Return floor(2^63 * Pr[|X| <= k]) for k = 0, 1, ... up to the last entry below 2^63 - 1.

    weights: proportional to Pr[|X| = k], k = 0, 1, ..., so many that the rest of the tail is below 2^-64.
    """
    listed = list(weights)
    whole, table, reached = sum(listed), [], Decimal(0)
    for weight in listed:
        reached += weight
        table.append(int(2**_WORD_BITS * reached / whole))
    return tuple(entry for entry in table if entry < 2**_WORD_BITS - 1)


def symmetric_samples(count: int, table: Sequence[int], random: Randomness) -> NDArray[np.int64]:
    """Return `count` samples, int64, at most len(table) in size; takes 8 bytes each of `random`."""
    words = np.frombuffer(random(8 * count), "<u8")
    samples = np.empty(count, np.int64)
    entries = np.array(table, np.int64)
    for start in range(0, count, _PIECE):
        piece = words[start : start + _PIECE]
        values, sizes = (piece >> np.uint64(1)).astype(np.int64), np.zeros(piece.size, np.uint16)
        reached = np.empty(piece.size, np.bool_)
        for entry in entries:
            np.greater_equal(values, entry, out=reached)
            sizes += reached.view(np.uint8)
        negative = (piece & np.uint64(1)).astype(np.int64)
        samples[start : start + _PIECE] = sizes * (1 - 2 * negative)
    return samples
