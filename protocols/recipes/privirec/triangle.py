"""A symmetric items x items matrix as its upper triangle, row by row: (0,0), (0,1), ... (0,m-1), (1,1), ..."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["row_starts", "triangle_length", "triangle_places"]


def triangle_length(items: int) -> int:
    """Return m (m + 1) / 2, the number of entries of the upper triangle."""
    return items * (items + 1) // 2


def row_starts(items: int) -> NDArray[np.int64]:
    """Return the position of each row's diagonal entry, int64 (items,)."""
    rows = np.arange(items, dtype=np.int64)
    return rows * items - rows * (rows - 1) // 2


def triangle_places(members: NDArray[np.integer], items: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions in the triangle of all pairs (i, j), i <= j, of `members`, and which two members each is.

    members: (k,) distinct item numbers. Returns positions, int64 (p,) ascending, and pairs of indices into `members`,
    int64 (2, p), with p = k (k + 1) / 2.
    """
    order = np.argsort(members, kind="stable")
    ascending = members[order].astype(np.int64)
    first, second = np.triu_indices(order.size)
    low, high = ascending[first], ascending[second]
    return row_starts(items)[low] + high - low, np.stack([order[first], order[second]])
