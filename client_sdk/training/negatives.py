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
    """`count` items, int32, independent and uniform over `negative_pool`; raises what it raises."""
    pool = negative_pool(positives, n_items, excluded)
    return pool[rng.integers(0, pool.size, count)].astype(np.int32)


def negative_pool(
    positives: NDArray[np.int32], n_items: int, excluded: NDArray[np.int32] | None = None
) -> NDArray[np.intp]:
    """The items of 0..n_items-1 outside `positives` and `excluded`, ascending.

    `excluded` (negative entries are ignored) serves the papers' own protocols, which leave out more than the training
    items; see `client_sdk.evaluation.paper_protocol`. Raises `ParameterError` when no item is left.
    """
    allowed = np.ones(n_items, dtype=bool)
    allowed[positives] = False
    if excluded is not None:
        allowed[excluded[excluded >= 0]] = False
    pool = np.flatnonzero(allowed)
    if not pool.size:
        raise ParameterError(f"no item of {n_items} is left to be a negative: the client has them all")
    return pool
