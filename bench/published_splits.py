"""Splits as in the papers' code: users with enough interactions, and hold-out of the item introduced last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.splits import only_users

__all__ = ["hold_out_introduced_last", "users_with_at_least"]


def users_with_at_least(interactions: Interactions, count: int) -> Interactions:
    """Return the interactions of users with at least `count` interactions, renumbered as by `only_users`.

    Raises `DataError` if no user remains.
    """
    active = np.flatnonzero(interactions.user_degrees() >= count)
    if not active.size:
        raise DataError(f"no user has {count} interactions or more")
    return only_users(interactions, active)


def hold_out_introduced_last(interactions: Interactions) -> LeaveOneOut:
    """Hold out each user's item with the highest number. The result has no timestamps.

    FilmTrust has no timestamps, but its public file numbers items in order of first appearance; the released code of
    FedEM, by PFedCLR's authors, uses this order as the time.
    """
    held = leave_one_out(replace(interactions, timestamps=interactions.items.astype(np.int64)), order="time")
    return replace(held, train=replace(held.train, timestamps=None))
