"""The state of a PriviRec task, and its arrays over all items and over those alone that have rows in the sums."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.layout import Floats
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.spectrum import triangle_length, triangle_places

N = TypeVar("N", bound=np.generic)


def _empty_array(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class PriviRecState(ModelState):
    """The results of `sum_index` sums; arrays are empty before their sum, and degrees in tasks that do not sum them."""

    sum_index: int = 0
    item_degrees: Floats = field(default_factory=lambda: np.zeros(0))
    """float64 (m,), whole numbers."""
    clients: int = 0
    """How many clients they were summed over."""
    list_entries: Floats = field(default_factory=lambda: np.zeros(0))
    """How many items an item's owners have, added up, float64 (m,), whole numbers."""
    basis: NDArray[np.float32] = _empty_array(0, 0)
    """Q, float32 (m, K), columns of norm 1, orthonormal within each tier; 0 for items with few owners, whose rows are
    not encoded."""
    singular_values: NDArray[np.float32] = _empty_array(0)
    """float32 (K,), of R~, zeros before the first iteration."""
    captured: float = 0.0
    """||Q_old^T Q_new||_F^2 / K of the last iteration."""
    change: float = 1.0
    """Relative change of the singular values in it."""
    gram: NDArray[np.float32] = _empty_array(0)
    """float32 (m (m+1) / 2,), P's upper triangle."""
    pairs: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """How many clients have both of two items, uint32: of the triangle of the items that have rows, what is summed."""
    pair_clients: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """How many clients were in each of these sums, uint32 (sums,)."""
    asked: NDArray[np.float32] = _empty_array(0, 0)
    products: NDArray[np.float32] = _empty_array(0, 0)
    """With `krylov` and before the last iteration, the Q and the Y of all iterations so far, float32 (m, t K)."""
    transitions: NDArray[np.float32] = _empty_array(0, 0)
    """M of `next_item`, float32 (n, n) for n `next_vectors`; empty before that sum."""
    setting: int = 0
    """Index of the setting of `validation.settings_of` that scores are made with."""
    measured: Floats = field(default_factory=lambda: np.zeros(0))
    """How many members measured, and the sums of their values of each setting, float64 (1 + settings,); empty before
    the sum of validation."""

    def following(self, spec: RoundSpec, **changes: Any) -> PriviRecState:
        """Return the state after the sum of `spec`, with these fields changed."""
        return replace(self, round_number=spec.number, sum_index=spec.sum_index, **changes)


def rows_of_all(found: NDArray[N], kept: NDArray[np.int64], items: int) -> NDArray[N]:
    """Return the rows of the `kept` items, (m, ...), among those of all `items`, which are 0."""
    if kept.size == items:
        return found
    whole = np.zeros((items, *found.shape[1:]), found.dtype)
    whole[kept] = found
    return whole


def triangle_of_all(found: NDArray[np.float32], kept: NDArray[np.int64], items: int) -> NDArray[np.float32]:
    """Return P's upper triangle over all `items`, from that over the `kept` ones; the other items' entries are 0."""
    if kept.size == items:
        return found
    whole = np.zeros(triangle_length(items), np.float32)
    whole[triangle_places(kept, items)[0]] = found
    return whole
