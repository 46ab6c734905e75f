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
    """items: int32 (k,), best first. scores: float32 (k,), logits q_i . p of matrix factorisation."""

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


def top_items(
    item_factors: NDArray[np.float32], user_factor: NDArray[np.float32], seen: NDArray[np.int32], k: int
) -> Recommendations:
    """The `k` items of highest score outside `seen`; ties go to the lower item number.

    `ParameterError` unless 1 <= k <= number of items that are not seen.
    """
    unseen = item_factors.shape[0] - seen.size
    if not 1 <= k <= unseen:
        raise ParameterError(f"k must lie in 1..{unseen} (the items not seen yet), got {k}")
    scores = (item_factors @ user_factor).astype(np.float32)
    scores[seen] = -np.inf
    best = np.argsort(-scores, kind="stable")[:k]
    return Recommendations(best.astype(np.int32), scores[best])
