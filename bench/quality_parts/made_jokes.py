"""Generated ratings in the shape of Jester: 20,000 users, 100 items, most of them rated, from -10 to 10."""

from __future__ import annotations

from typing import Final

import numpy as np

from client_sdk.lab.data.interactions import Interactions

__all__ = ["made_jokes"]

_USERS: Final = 20_000
_ITEMS: Final = 100
_SCALES: Final = np.array([3.0, 2.0, 1.5, 1.0, 1.0, 0.7, 0.7, 0.5])
"""Spread of the eight factors."""


def made_jokes(users: int = _USERS) -> Interactions:
    """Return a user's and an item's deviation, the product of eight factors and noise, clipped to the scale."""
    rng = np.random.default_rng(0)
    own, items = rng.standard_normal((users, 8)) * _SCALES, rng.standard_normal((8, _ITEMS))
    means = 0.8 + 2.2 * rng.standard_normal((users, 1)) + 1.6 * rng.standard_normal((1, _ITEMS))
    ratings = means + 0.6 * own @ items + 4.0 * rng.standard_normal((users, _ITEMS))
    rated = rng.random((users, _ITEMS)) < rng.uniform(0.3, 1.0, (users, 1))
    owners, places = np.nonzero(rated)
    found = np.clip(np.round(ratings, 2), -10, 10)[rated].astype(np.float32)
    return Interactions.from_pairs(owners, places, n_users=users, n_items=_ITEMS, ratings=found)
