"""Training negatives: items that the user is not known to like, drawn from everything outside the TRAINING items.

The held-out item may be drawn: a device cannot know which of its future items an evaluator holds out. Leaving it
out, as several published code bases do, tells the model which items are never negatives, and that alone can reach a
near-perfect HR@10; `docs/evaluation.md` has the figures.
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
    """`count` items, int32, independent and uniform over `negative_pool`; raises what it raises.

    In the memory of what is drawn and of what is left out: a small device has no room for a list of all items.
    """
    taken = _taken(positives, n_items, excluded)
    drawn = rng.integers(0, n_items - taken.size, count)
    # the r-th item outside `taken` is r, and one more for every taken item before it
    return (drawn + np.searchsorted(taken - np.arange(taken.size), drawn, side="right")).astype(np.int32)


def negative_pool(
    positives: NDArray[np.int32], n_items: int, excluded: NDArray[np.int32] | None = None
) -> NDArray[np.intp]:
    """The items of 0..n_items-1 outside `positives` and `excluded`, ascending.

    `excluded` (negative entries are ignored) serves the papers' own protocols, which leave out more than the training
    items; see `client_sdk.evaluation.paper_protocol`. Raises `ParameterError` when no item is left.
    """
    allowed = np.ones(n_items, dtype=bool)
    allowed[_taken(positives, n_items, excluded)] = False
    return np.flatnonzero(allowed)


def _taken(positives: NDArray[np.int32], n_items: int, excluded: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Positives and excluded items, ascending, each once."""
    both = positives if excluded is None else np.concatenate([positives, excluded[excluded >= 0]])
    taken = np.unique(both).astype(np.int64)
    if taken.size >= n_items:
        raise ParameterError(f"no item of {n_items} is left to be a negative: the client has them all")
    return taken
