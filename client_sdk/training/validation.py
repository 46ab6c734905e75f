"""How well each setting of the filter ranks an item that a user kept out of the sums: what a sum of validation adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.evaluated import gains
from client_sdk.training.graph_filters import CHUNK_VALUES, Components, Ease, dense
from protocols.recipes.validation import SETTINGS

if TYPE_CHECKING:
    from client_sdk.training.graph_filters import Matrix

_CUT: Final = 20
_EQUAL: Final = 1e-5
"""Scores that differ by less than this part of the largest are equal, so that rounding ranks nothing."""


def measured(components: Components, rows: Matrix, held: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return NDCG@20 of each user's held-out item under each of `SETTINGS`, float64 (users, settings).

    components: without a Gram matrix. rows: the users' other items, (users, m). held: the held-out items, (users,). One
    is ranked among all items that the user does not have, and below those with the same score.
    """
    found = np.zeros((held.size, len(SETTINGS)))
    step = max(1, CHUNK_VALUES // components.n_items)
    for start in range(0, held.size, step):
        some = slice(start, start + step)
        others, target = dense(rows[some]) == 0, (np.arange(len(held[some])), held[some])
        others[target] = False
        for index, setting in enumerate(SETTINGS):
            scores = Ease(setting=setting).scores(components, rows[some])
            level = scores[target] - _EQUAL * np.abs(scores).max(axis=1, where=others, initial=0.0)
            above = np.count_nonzero(~(scores < level[:, None]) & others, axis=1)
            found[some, index] = gains(1 + above, _CUT)
    return found
