"""Top-K's shared support, the entries that every client sends: a public function of the sums so far.

A support must not depend on one client's data, so it is computed from sums, in one of two ways:

    aggregate   the entries of the last sum with the largest mean change
    vote        the items that most clients vote for, with votes summed next to the values

Only half of the next support comes from there. Entries outside the support are not summed, so a support made of the
strongest entries alone could never grow beyond them. The other half is drawn from all other entries with the round's
public seed, so that every entry is drawn after 2/share sums on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.public_random import permutation

__all__ = ["entries_of_rows", "first_units", "renewed_units", "strongest_first"]


def first_units(task_seed: bytes, units: int, kept: int) -> NDArray[np.int64]:
    """Return the first support, int64 (kept,), ascending: drawn from range(units) with the task's seed."""
    return np.sort(permutation(task_seed, "first support", units)[:kept])


def strongest_first(candidates: NDArray[np.int64], strength: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the candidates (k,) with positive `strength` (k,), strongest first; ties go to the lower number."""
    order = np.lexsort((candidates, -strength))
    return candidates[order[: np.count_nonzero(strength > 0)]]


def renewed_units(strongest: NDArray[np.int64], seed: bytes, units: int, kept: int) -> NDArray[np.int64]:
    """Return the next support, int64 (kept,), ascending, distinct.

    It is the first kept // 2 of `strongest`, filled up with others of range(units) drawn with `seed`, the public seed
    of the last summed round.
    """
    held = strongest[: kept // 2]
    drawn = permutation(seed, "support", units)
    free = np.ones(units, dtype=bool)
    free[held] = False
    return np.sort(np.concatenate([held, drawn[free[drawn]][: kept - held.size]]))


def entries_of_rows(rows: NDArray[np.int64], dim: int) -> NDArray[np.int64]:
    """Return the row-major numbers of all entries of `rows` (k,) in a matrix with `dim` columns, int64 (k * dim,)."""
    return np.asarray(rows[:, None] * dim + np.arange(dim)).ravel()
