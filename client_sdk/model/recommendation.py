"""Recommendations, computed on the device from scores that never leave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

__all__ = ["Recommendations", "top_items"]


@dataclass(frozen=True, eq=False)
class Recommendations:
    """The best items for one user.

    items: int32 (k,), best first. scores: float32 (k,), the recipe's scores (logits q_i . p for factor models).
    Iterating yields pairs of item and score.
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return int(self.items.size)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(zip(self.items.tolist(), self.scores.tolist(), strict=True))


def top_items(scores: NDArray[np.float32], seen: NDArray[np.int32], k: int) -> Recommendations:
    """Return the `k` items of highest score that are not in `seen`; the lower item number wins a tie.

    scores: float32 (items,). seen: int32, distinct item numbers. Raises `ParameterError` unless 1 <= k <= number of
    items that are not seen.
    """
    unseen = scores.size - seen.size
    if not 1 <= k <= unseen:
        raise ParameterError(f"k must be in 1..{unseen} (the number of items not seen yet), got {k}")
    allowed = scores.astype(np.float32)
    allowed[seen] = -np.inf
    best = np.argsort(-allowed, kind="stable")[:k]
    return Recommendations(best.astype(np.int32), allowed[best])
