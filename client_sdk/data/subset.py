"""Subsets of a data set, with users and items renumbered. Papers use them on sparse data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions

__all__ = ["sample_users", "users_with_at_least"]


def sample_users(interactions: Interactions, count: int, rng: np.random.Generator | int = 0) -> Interactions:
    """Return the interactions of `count` random users who have any, and only the items of these users.

    Users and items are renumbered as by `users_with_at_least`. rng: a generator or a seed. The result is `interactions`
    itself if no more than `count` users have any.
    """
    active = np.flatnonzero(interactions.user_degrees())
    if active.size <= count:
        return interactions
    return _only(interactions, np.sort(np.random.default_rng(rng).choice(active, count, replace=False)))


def users_with_at_least(interactions: Interactions, count: int) -> Interactions:
    """Return the interactions of users with at least `count` interactions, and only the items of these users.

    Users and items are renumbered from 0 in their order. Their ids are the ids of the input, or its numbers if it has
    no ids. Merged interactions count once. Raises `DataError` if no user remains.
    """
    active = np.flatnonzero(interactions.user_degrees() >= count)
    if not active.size:
        raise DataError(f"no user has {count} interactions or more")
    return _only(interactions, active)


def _only(interactions: Interactions, active: NDArray[np.intp]) -> Interactions:
    """Return the interactions of the users `active`, ascending."""
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
