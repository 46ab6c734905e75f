"""Which entries everybody sends in Top-K's shared support: public functions of what is known after the last sum.

A support must not follow from one client's data, so it follows from sums. Two are there to follow from:

    aggregate   the entries of the last sum, by the size of their mean change
    vote        the items that most clients had most to say about, counted beside the values

Either way only half of the next support is taken from there. What is not in a support is not summed, so a support made
of the last one's strongest entries alone could only shrink towards them; the other half is drawn anew from all other
entries by the round's public seed, so that every entry gets its turn, after 2/share sums on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.public_random import permutation

__all__ = ["entries_of_rows", "first_units", "renewed_units", "strongest_first"]


def first_units(task_seed: bytes, units: int, kept: int) -> NDArray[np.int64]:
    """The first support, when nothing was summed yet: `kept` of range(units), ascending, drawn by the task's seed."""
    return np.sort(permutation(task_seed, "first support", units)[:kept])


def strongest_first(candidates: NDArray[np.int64], strength: NDArray[np.float64]) -> NDArray[np.int64]:
    """The candidates (k,) of positive `strength` (k,), the strongest first; ties go to the lower number."""
    order = np.lexsort((candidates, -strength))
    return candidates[order[: np.count_nonzero(strength > 0)]]


def renewed_units(strongest: NDArray[np.int64], seed: bytes, units: int, kept: int) -> NDArray[np.int64]:
    """The next support: the first kept // 2 of `strongest`, and as many others of range(units) as are missing.

    `seed` is the public seed of the round that was summed last. Ascending, `kept` numbers, each once.
    """
    held = strongest[: kept // 2]
    drawn = permutation(seed, "support", units)
    free = np.ones(units, dtype=bool)
    free[held] = False
    return np.sort(np.concatenate([held, drawn[free[drawn]][: kept - held.size]]))


def entries_of_rows(rows: NDArray[np.int64], dim: int) -> NDArray[np.int64]:
    """Numbers of the entries of whole rows of a matrix of `dim` columns, row-major."""
    return np.asarray(rows[:, None] * dim + np.arange(dim)).ravel()
