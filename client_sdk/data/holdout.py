"""Splits with several test interactions a user, for data sets that are published without one."""

from __future__ import annotations

import numpy as np

from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions

__all__ = ["hold_out_share", "split_rows"]


def hold_out_share(
    interactions: Interactions, share: float = 0.2, rng: np.random.Generator | int = 0
) -> tuple[Interactions, Interactions]:
    """Train and test: of every user's n interactions, round(share * n) drawn at random are held out, never all of them.

    `rng` is a generator or a seed; both sides keep the numbering of users and items. Raises `DataError` for a share
    outside (0, 1).
    """
    _check_share(share)
    counts, users = interactions.user_degrees(), interactions.users
    order = np.lexsort((np.random.default_rng(rng).random(interactions.size), users))
    place = np.arange(interactions.size) - interactions.indptr[users]
    held = np.minimum(np.rint(share * counts).astype(np.int64), np.maximum(counts - 1, 0))
    is_test = np.zeros(interactions.size, dtype=bool)
    is_test[order] = place < held[users]
    return interactions.where(~is_test), interactions.where(is_test)


def split_rows(
    interactions: Interactions, share: float = 0.2, rng: np.random.Generator | int = 0
) -> tuple[Interactions, Interactions]:
    """Train and test: round(share * rows) of all interactions are drawn for the test, whoever they belong to.

    RFRec's split of explicit ratings (80/20): a user may end up without training or without test rows. `rng` is a
    generator or a seed; both sides keep ratings and the numbering. Raises `DataError` for a share outside (0, 1) and
    when a side would be empty.
    """
    _check_share(share)
    count = int(np.rint(share * interactions.size))
    if not 0 < count < interactions.size:
        raise DataError(f"{interactions.size} rows are too few to split off a share of {share}")
    is_test = np.zeros(interactions.size, dtype=bool)
    is_test[np.random.default_rng(rng).permutation(interactions.size)[:count]] = True
    return interactions.where(~is_test), interactions.where(is_test)


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise DataError(f"a share between 0 and 1 was expected, got {share}")
