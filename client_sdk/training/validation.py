"""How well each setting of the filter ranks an item that a user kept out of the sums: what a sum of validation adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.evaluated import gains
from client_sdk.training.graph_filters import CHUNK_VALUES, Components, Ridge, blended, dense, following, scaled
from client_sdk.training.slim import Slim
from protocols.recipes.validation import SETTINGS, Setting

if TYPE_CHECKING:
    from client_sdk.training.graph_filters import Matrix

_CUT: Final = 20
_EQUAL: Final = 1e-5
"""Scores that differ by less than this part of the largest are equal, so that rounding ranks nothing."""


def measured(
    components: Components,
    rows: Matrix,
    held: NDArray[np.integer],
    settings: Sequence[Setting] = SETTINGS,
    ends: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return NDCG@20 of each user's held-out item under each setting, float64 (users, settings).

    components: without a Gram matrix. rows: the users' other items, (users, m). held: the held-out items, (users,). One
    is ranked among all items that the user does not have, and below those with the same score. ends: as `following`
    takes them, of the other items, if the settings have shares of it.
    """
    found, down = np.zeros((held.size, len(settings))), components.degree_scales(components.degree_exponent)[0]
    ups = {one.shift: components.degree_scales(components.degree_exponent + one.shift)[1] for one in settings}
    pairs = dict.fromkeys((one.part, one.weight) for one in settings if not one.sizes)
    ridges = {pair: Ridge.of(components, *pair) for pair in pairs}
    step = max(1, CHUNK_VALUES // components.n_items)
    for start in range(0, held.size, step):
        some = slice(start, start + step)
        x, target = scaled(rows[some], down), (np.arange(len(held[some])), held[some])
        own = dense(x)
        others = dense(rows[some]) == 0
        others[target] = False
        after = {} if ends is None else {one.shift: following(components, ends[some], one) for one in settings}
        for pair, ridge in ridges.items():
            kept = ridge.kept(x)
            made = {False: kept, True: ridge.zeroed(own, kept)}
            for index, setting in enumerate(settings):
                if (setting.part, setting.weight) == pair and not setting.sizes:
                    scores = np.asarray(made[setting.zero] * ups[setting.shift], dtype=np.float32)
                    if setting.share:
                        scores = blended(components, setting, scores, after[setting.shift])
                    found[some, index] = _gains(scores, target, others)
        for index, setting in enumerate(settings):
            if setting.sizes:
                found[some, index] = _gains(Slim(setting).scores(components, rows[some]), target, others)
    return found


def _gains(
    scores: NDArray[np.float32], target: tuple[NDArray[np.integer], NDArray[np.integer]], others: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return NDCG@20 of each user's held-out item, (users,). target: its places. others: what it is ranked among."""
    level = scores[target] - _EQUAL * np.abs(scores).max(axis=1, where=others, initial=0.0)
    return gains(1 + np.count_nonzero(~(scores < level[:, None]) & others, axis=1), _CUT)
