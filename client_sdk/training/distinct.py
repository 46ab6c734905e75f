"""The distinct values of short arrays of small integers, counted instead of sorted."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["distinct"]

_SPARSE: Final = 8
"""Possible values for each element, above which sorting the elements is faster than counting the values."""


def distinct(values: NDArray[np.integer], bound: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the distinct values, ascending, the place of each element among them, and how often each occurs.

    values: integers (n,) in 0..bound-1. The result is that of `np.unique` with inverse and counts.
    """
    if bound > _SPARSE * values.size:
        found, places, times = np.unique(values, return_inverse=True, return_counts=True)
        return found.astype(np.intp), places, times
    counts = np.bincount(values)
    used = counts.nonzero()[0]
    place_of = np.empty(counts.size, dtype=np.intp)
    place_of[used] = np.arange(used.size)
    return used, place_of[values], counts[used]
