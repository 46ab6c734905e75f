"""Recommending on the device: scores never leave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["Recommendations", "item_ids", "top_items"]


@dataclass(frozen=True, eq=False)
class Recommendations:
    """items: int32 (k,), best first. scores: float32 (k,), what the recipe scores by (logits q_i . p for factors)."""

    items: NDArray[np.int32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return int(self.items.size)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(zip(self.items.tolist(), self.scores.tolist(), strict=True))


def item_ids(items: object, n_items: int, what: str = "interactions") -> NDArray[np.int32]:
    """`items` as int32 (k,); `ParameterError` unless they are whole numbers in 0..n_items-1, each listed once."""
    array = np.asarray(items)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ParameterError(f"{what} must be a flat list of item numbers, got {array.dtype} of shape {array.shape}")
    if array.min() < 0 or array.max() >= n_items:
        raise ParameterError(f"{what} name an item outside 0..{n_items - 1}")
    if np.unique(array).size != array.size:
        raise ParameterError(f"{what} list an item twice: pass each item once")
    return array.astype(np.int32)


def top_items(scores: NDArray[np.float32], seen: NDArray[np.int32], k: int) -> Recommendations:
    """The `k` items of highest score, float32 (items,), outside `seen`; ties go to the lower item number.

    `ParameterError` unless 1 <= k <= number of items that are not seen.
    """
    unseen = scores.size - seen.size
    if not 1 <= k <= unseen:
        raise ParameterError(f"k must lie in 1..{unseen} (the items not seen yet), got {k}")
    allowed = scores.astype(np.float32)
    allowed[seen] = -np.inf
    best = np.argsort(-allowed, kind="stable")[:k]
    return Recommendations(best.astype(np.int32), allowed[best])
