"""Part of a data set, renumbered: what papers do to sparse data before they measure on it."""

from __future__ import annotations

import numpy as np

from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions

__all__ = ["users_with_at_least"]


def users_with_at_least(interactions: Interactions, count: int) -> Interactions:
    """Only the users with `count` interactions or more, and only the items that one of them has.

    Users and items are numbered anew from 0 in their former order; their ids are the former ones, or the former numbers
    where there were none. Interactions that were merged before do not count twice. Raises `DataError` when nobody is
    left.
    """
    active = np.flatnonzero(interactions.user_degrees() >= count)
    if not active.size:
        raise DataError(f"no user has {count} interactions or more")
    kept = interactions.where(np.isin(interactions.users, active))
    items = np.flatnonzero(kept.item_degrees())
    return Interactions(
        active.size,
        items.size,
        np.concatenate([[0], np.cumsum(kept.user_degrees()[active])]).astype(np.int64),
        np.searchsorted(items, kept.items).astype(np.int32),
        kept.ratings,
        kept.timestamps,
        active if kept.user_ids is None else kept.user_ids[active],
        items if kept.item_ids is None else kept.item_ids[items],
        kept.merged,
    )
