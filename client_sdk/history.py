"""The interactions of one user: items and, where the recipe needs them, ratings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["History", "item_ids"]


@dataclass(frozen=True, eq=False)
class History:
    """One user's interactions, each item once. They are never sent.

    items: int32 (k,). ratings: float32 (k,) in the scale of the data, None for interactions without ratings.
    Raises `ParameterError` when the lengths differ or a rating is not finite.
    """

    items: NDArray[np.int32]
    ratings: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if self.ratings is None:
            return
        if self.ratings.shape != self.items.shape:
            raise ParameterError(f"expected {self.items.size} ratings, got an array of shape {self.ratings.shape}")
        if not np.isfinite(self.ratings).all():
            raise ParameterError("every rating must be a finite number")

    def __len__(self) -> int:
        return int(self.items.size)

    def __repr__(self) -> str:
        return f"History({len(self)} items{'' if self.ratings is None else ', rated'})"

    @classmethod
    def of(cls, interactions: object, n_items: int) -> History:
        """Return the `History` for `interactions`: a `History`, a mapping from item to rating, or a list of items.

        Raises `ParameterError` unless the items are distinct integers in 0..n_items-1 and the ratings are numbers.
        """
        if isinstance(interactions, History):
            return cls(item_ids(interactions.items, n_items), interactions.ratings)
        if not isinstance(interactions, Mapping):
            return cls(item_ids(interactions, n_items))
        items = item_ids(list(interactions), n_items)
        try:
            ratings = np.array(list(interactions.values()), dtype=np.float32)
        except (TypeError, ValueError):
            raise ParameterError("every rating must be a number") from None
        return cls(items, ratings)


def item_ids(items: object, n_items: int, what: str = "interactions") -> NDArray[np.int32]:
    """Return `items` as int32 (k,).

    what: the noun for the items in errors. Raises `ParameterError` unless they are distinct integers in 0..n_items-1.
    """
    array = np.asarray(items)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ParameterError(f"{what} must be a flat list of integers, got {array.dtype} of shape {array.shape}")
    if array.min() < 0 or array.max() >= n_items:
        raise ParameterError(f"{what} contain an item outside 0..{n_items - 1}")
    if np.unique(array).size != array.size:
        raise ParameterError(f"{what} contain an item twice: pass each item once")
    return array.astype(np.int32)
