"""A symmetric items x items matrix as its upper triangle, row after row: (0,0), (0,1), ... (0,m-1), (1,1), ..."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["row_starts", "triangle_length", "triangle_places"]


def triangle_length(items: int) -> int:
    """m (m + 1) / 2."""
    return items * (items + 1) // 2


def row_starts(items: int) -> NDArray[np.int64]:
    """Where each row's diagonal entry lies, int64 (items,)."""
    rows = np.arange(items, dtype=np.int64)
    return rows * items - rows * (rows - 1) // 2


def triangle_places(members: NDArray[np.integer], items: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every pair of `members` (k,) in the triangle: places of its (i, j), i <= j, and which two of `members` it is.

    members: distinct item numbers. Returns places int64 (p,) ascending, and pairs int64 (2, p), p = k (k + 1) / 2.
    """
    order = np.argsort(members, kind="stable")
    ascending = members[order].astype(np.int64)
    first, second = np.triu_indices(order.size)
    low, high = ascending[first], ascending[second]
    return row_starts(items)[low] + high - low, np.stack([order[first], order[second]])
