"""Draws of training negatives from all items outside the user's TRAINING items.

The held-out item may be drawn, because a device cannot know which of its future items an evaluation holds out. Several
published code bases never draw it. The model then learns which items are never negatives, and this alone can give an
HR@10 close to 1; `docs/evaluation.md` has the figures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["draw_negatives", "negative_pool"]


def draw_negatives(
    positives: NDArray[np.int32],
    n_items: int,
    count: int,
    rng: np.random.Generator,
    excluded: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """Return `count` items, int32 (count,), drawn independently and uniformly from `negative_pool`.

    Needs memory for the draws and the excluded items only, because a small device may have no memory for a list of all
    items. Raises `ParameterError` if the pool is empty.
    """
    taken = _taken(positives, n_items, excluded)
    drawn = rng.integers(0, n_items - taken.size, count)
    # the r-th item outside `taken` is r plus the number of taken items before it
    return (drawn + np.searchsorted(taken - np.arange(taken.size), drawn, side="right")).astype(np.int32)


def negative_pool(
    positives: NDArray[np.int32], n_items: int, excluded: NDArray[np.int32] | None = None
) -> NDArray[np.intp]:
    """Return the items of 0..n_items-1 outside `positives` and `excluded`, ascending.

    excluded: more items to leave out, for the protocols of some papers (see `client_sdk.evaluation.paper_protocol`);
    entries below 0 are ignored. Raises `ParameterError` if no item remains.
    """
    allowed = np.ones(n_items, dtype=bool)
    allowed[_taken(positives, n_items, excluded)] = False
    return np.flatnonzero(allowed)


def _taken(positives: NDArray[np.int32], n_items: int, excluded: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Return the positives and excluded items, distinct, ascending. Raises `ParameterError` if these are all items."""
    both = positives if excluded is None else np.concatenate([positives, excluded[excluded >= 0]])
    taken = np.unique(both).astype(np.int64)
    if taken.size >= n_items:
        raise ParameterError(f"no item is left as a negative: the client has all {n_items} items")
    return taken
