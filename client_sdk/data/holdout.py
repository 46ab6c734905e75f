"""Splits with several test interactions per user, for data sets that are published without a split."""

from __future__ import annotations

import numpy as np

from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions

__all__ = ["hold_out_share", "split_rows"]


def hold_out_share(
    interactions: Interactions, share: float = 0.2, rng: np.random.Generator | int = 0
) -> tuple[Interactions, Interactions]:
    """Return training and test interactions: round(share * n) random ones of each user's n are held out, never all.

    rng: a generator or a seed. Both results keep the numbering of users and items. Raises `DataError` for a share
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
    """Return training and test interactions: round(share * rows) random rows of all users are held out.

    RFRec's split of explicit ratings (80/20). A user may have no training rows or no test rows. rng: a generator or a
    seed. Both results keep ratings and the numbering. Raises `DataError` for a share outside (0, 1), and if one of the
    results would be empty.
    """
    _check_share(share)
    count = int(np.rint(share * interactions.size))
    if not 0 < count < interactions.size:
        raise DataError(f"{interactions.size} rows are too few to hold out a share of {share}")
    is_test = np.zeros(interactions.size, dtype=bool)
    is_test[np.random.default_rng(rng).permutation(interactions.size)[:count]] = True
    return interactions.where(~is_test), interactions.where(is_test)


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise DataError(f"the share must lie between 0 and 1, got {share}")
