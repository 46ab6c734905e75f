"""Item means of RFRec: the first sums of a task give each item's mean rating, from which every model begins.

With `item_bias` "means" a client sends, in one of the first `count_sums` sums, for each item whether it rated it (0 or
1) and by how much its rating, on the unit scale, exceeds 1/2. With n_j and s_j the totals of item j,

    mu = 1/2 + sum s_j / sum n_j        b_j = (s_j - (mu - 1/2) n_j) / (n_j + 5)

and a device adds its own user's deviation, shrunk in the same way: b_u = sum_j (y_j - mu - b_j) / (|R_u| + 5). The
prediction is sigmoid(o_j + u . v_j) with o_j = logit(mu + b_j + b_u), so that the factors only learn what the means do
not say. 5 ratings at the mean are the usual shrinkage of biased matrix factorisation (Koren, 2008, section 2.1).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocols.layout import ONCE_ROWS, Block, Segment, VectorLayout

__all__ = ["ItemMeans", "item_means", "means_layout", "rating_offsets"]

_SHRINKAGE: Final = 5.0
_MARGIN: Final = 0.02
"""Means are kept so far from 0 and 1, where the logit is infinite."""


class ItemMeans(NamedTuple):
    """The overall mean, on the unit scale, and each item's deviation from it, float64 (items,)."""

    overall: float
    deviations: NDArray[np.float64]


def means_layout(items: int) -> VectorLayout:
    """Return the layout of a sum of ratings: who rated each item, and the ratings minus 1/2."""
    return VectorLayout(
        (Block("ratings", (Segment("rated", items, 1.0, integral=True), Segment("above", items, 0.5))),),
        sum_class=ONCE_ROWS,
    )


def item_means(totals: NDArray[np.floating]) -> ItemMeans:
    """Return the means from the totals of count and rating minus 1/2, (2, items); 1/2 and zeros without ratings."""
    rated, above = np.maximum(totals[0], 0.0).astype(np.float64), totals[1].astype(np.float64)
    centre = float(above.sum() / max(1.0, rated.sum()))
    return ItemMeans(0.5 + centre, (above - centre * rated) / (rated + _SHRINKAGE))


def rating_offsets(means: ItemMeans, items: NDArray[np.int32], targets: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return o_j of every item for the user who rated `items` (k,) with `targets` (k,) on the unit scale; float32."""
    base = means.overall + means.deviations
    own = float((targets - base[items]).sum() / (items.size + _SHRINKAGE))
    expected = np.clip(base + own, _MARGIN, 1 - _MARGIN)
    return np.asarray(np.log(expected / (1 - expected)), dtype=np.float32)
