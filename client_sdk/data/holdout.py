"""A split with several test items a user, for data sets that are published without one."""

from __future__ import annotations

import numpy as np

from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions

__all__ = ["hold_out_share"]


def hold_out_share(
    interactions: Interactions, share: float = 0.2, rng: np.random.Generator | int = 0
) -> tuple[Interactions, Interactions]:
    """Train and test: of every user's n interactions, round(share * n) drawn at random are held out, never all of them.

    `rng` is a generator or a seed; both sides keep the numbering of users and items. Raises `DataError` for a share
    outside (0, 1).
    """
    if not 0 < share < 1:
        raise DataError(f"a share between 0 and 1 was expected, got {share}")
    counts, users = interactions.user_degrees(), interactions.users
    order = np.lexsort((np.random.default_rng(rng).random(interactions.size), users))
    place = np.arange(interactions.size) - interactions.indptr[users]
    held = np.minimum(np.rint(share * counts).astype(np.int64), np.maximum(counts - 1, 0))
    is_test = np.zeros(interactions.size, dtype=bool)
    is_test[order] = place < held[users]
    return _side(interactions, ~is_test), _side(interactions, is_test)


def _side(interactions: Interactions, kept: np.ndarray) -> Interactions:
    indptr = np.concatenate([[0], np.cumsum(np.bincount(interactions.users[kept], minlength=interactions.n_users))])
    return Interactions(
        interactions.n_users,
        interactions.n_items,
        indptr.astype(np.int64),
        interactions.items[kept],
        None if interactions.ratings is None else interactions.ratings[kept],
        None if interactions.timestamps is None else interactions.timestamps[kept],
        interactions.user_ids,
        interactions.item_ids,
        interactions.merged,
    )
