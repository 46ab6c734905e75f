"""Contributions that choose which blocks of the sum they add to, and name them in the clear before their body.

A route is public and reveals nothing. In a layout with `chosen` blocks per contribution, the client chooses the blocks,
so the server learns the choice: in Top-K's `own` support, which entries of the item factors the client changes most. A
mechanism that can sum such blocks uses `name_blocks` in `seal` and `read_blocks` in `check` and `fold`; the others
reject the layout with `refuse_chosen`.

    head    `chosen` block numbers, uint32 little-endian, strictly ascending
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ContributionError, ParameterError
from protocols.layout import VectorLayout
from protocols.sums.base import Buffer, SumPlan

__all__ = ["head_bytes", "name_blocks", "read_blocks", "refuse_chosen"]

INDEX_BYTES: Final = 4


def head_bytes(layout: VectorLayout) -> int:
    """Return the length in bytes of the head of a contribution; 0 if the layout has no chosen blocks."""
    return INDEX_BYTES * layout.chosen


def name_blocks(layout: VectorLayout, parts: Sequence[NDArray[np.float64]]) -> tuple[bytes, NDArray[np.float64]]:
    """Return the head of a contribution and its values, float64 (chosen, block length).

    parts: block numbers (chosen,), then values. Raises `ParameterError` unless the numbers are ascending whole numbers
    of blocks of the layout, and there are as many values as these blocks hold.
    """
    if len(parts) != 2:
        raise ParameterError(f"a contribution is a vector of block numbers and one of values, {len(parts)} were given")
    numbers, values = parts
    width = layout.blocks[0].length
    if values.size != layout.chosen * width:
        raise ParameterError(f"{layout.chosen} blocks hold {layout.chosen * width} values, got {values.size}")
    whole = numbers.astype(np.int64) if np.isfinite(numbers).all() else np.zeros(0, np.int64)
    if not (np.array_equal(whole, numbers) and _ascending(layout, whole)):
        raise ParameterError(f"a contribution must name {layout.chosen} blocks of the sum, ascending, each once")
    return whole.astype("<u4").tobytes(), values.reshape(layout.chosen, width)


def read_blocks(plan: SumPlan, body: Buffer) -> tuple[NDArray[np.int64], memoryview]:
    """Return the block numbers, int64 (chosen,), that a contribution names, and the bytes after them.

    Raises `ContributionError` for another length than the plan's, and for numbers that are not ascending or not of a
    block of the layout.
    """
    view, expected = memoryview(body).cast("B"), plan.contribution_bytes(())
    if view.nbytes != expected:
        raise ContributionError(f"a contribution along this route is {expected} bytes, got {view.nbytes}")
    head = head_bytes(plan.layout)
    numbers = np.frombuffer(view[:head], "<u4").astype(np.int64)
    if not _ascending(plan.layout, numbers):
        raise ContributionError("a contribution must name blocks of the sum in ascending order, each once")
    return numbers, view[head:]


def refuse_chosen(layout: VectorLayout, mechanism: str) -> None:
    """Raise `ParameterError` if contributions to this layout choose their blocks; `mechanism` needs public routes."""
    if layout.chosen:
        raise ParameterError(f"{mechanism!r} sums need public routes: contributions cannot choose their blocks")


def _ascending(layout: VectorLayout, numbers: NDArray[np.int64]) -> bool:
    fits = numbers.shape == (layout.chosen,) and numbers[0] >= 0 and numbers[-1] < len(layout.blocks)
    return bool(fits and (numbers[1:] > numbers[:-1]).all())
