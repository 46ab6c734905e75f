"""Shared by the matrix-factorisation recipes: parameters, initial factors, dense rows and their change."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocols.crypto.public_random import normals
from protocols.errors import ParameterError
from protocols.layout import Block, clip_to_bounds
from protocols.recipes.base import (
    Contribution,
    FactorState,
    ItemParameters,
    ModelState,
    RoundSpec,
    Update,
    check_follows,
)
from protocols.recipes.state import state_as

__all__ = [
    "FactorParameters",
    "advance",
    "clip_blocks",
    "dense_rows",
    "initial_factors",
]

MAX_DIM: Final = 4096
_ROWS: Final = 1024


class FactorParameters(ItemParameters):
    """Parameters of every recipe that learns item factors Q of shape (items, dim)."""

    dim: int = Field(default=64, ge=1, le=MAX_DIM, description="Length d of a factor.")
    clip: float = Field(
        default=4.0,
        gt=0,
        le=1e6,
        description="Bound on each uploaded value; what exceeds it is clipped and counted.",
    )


def initial_factors(task_seed: bytes, items: int, dim: int) -> NDArray[np.float32]:
    """Return Q of round 0, float32 (items, dim), entries N(0, 1/dim), from the task's seed (released CoLR code)."""
    flat = normals(task_seed, "initial item factors", items * dim)
    flat /= np.sqrt(dim)
    return np.asarray(flat.reshape(items, dim), dtype=np.float32)


def dense_rows(update: Update, items: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the update's rows scattered to float64 (items, width), and the touch vector, float64 (items,).

    Raises `ParameterError` if the rows do not have `width` columns, or an item is unknown or listed twice.
    """
    if update.values.shape != (update.items.size, width):
        raise ParameterError(f"an update of {update.items.size} rows x {width} was expected, got {update.values.shape}")
    if update.items.size and not (update.items.min() >= 0 and update.items.max() < items):
        raise ParameterError(f"an update names an item outside 0..{items - 1}")
    touched = np.bincount(update.items, minlength=items).astype(np.float64)
    if touched.max(initial=0) > 1:
        raise ParameterError("an update lists an item twice")
    rows = np.zeros((items, width))
    rows[update.items] = update.values
    return rows, touched


def clip_blocks(blocks: tuple[Block, ...], vectors: list[NDArray[np.float64]]) -> Contribution:
    """Return the contribution of these vectors, each clipped to its block's bounds."""
    pairs = [clip_to_bounds(block, vector) for block, vector in zip(blocks, vectors, strict=True)]
    return Contribution([vector for vector, _ in pairs], sum(clipped for _, clipped in pairs))


def advance(state: ModelState, spec: RoundSpec, change: NDArray[np.float64], rate: float = 1.0) -> FactorState:
    """Return the state after round `spec.number`: item factors plus `rate * change` (items, dim), rounded to float32.

    Raises `ParameterError` if `state` is already of this round or a later one.
    """
    check_follows(state, spec)
    own = state_as(state, FactorState)
    before = own.item_factors
    moved = np.empty(before.shape, np.float32)
    for start in range(0, len(before), _ROWS):  # a few rows at a time: float64 sums of all would be the most memory
        rows = slice(start, start + _ROWS)
        moved[rows] = before[rows] + rate * change[rows]
    return replace(own, round_number=spec.number, item_factors=moved)
