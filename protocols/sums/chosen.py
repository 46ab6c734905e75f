"""Contributions that choose which blocks of the sum they feed, and say so in the clear, ahead of their body.

A route is public: who computes it learns nothing. Where a layout has `chosen` blocks a contribution, the choice is the
client's own, so whoever sees it learns what the client chose: in Top-K's `own` support, on which entries of the item
factors it has most to say. A mechanism that can sum such blocks lays them out with `name_blocks` when it seals and
takes them apart with `read_blocks` when it checks and folds; the others refuse the layout with `refuse_chosen`.

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
    """What naming its blocks adds to a contribution: 0 where none are chosen."""
    return INDEX_BYTES * layout.chosen


def name_blocks(layout: VectorLayout, parts: Sequence[NDArray[np.float64]]) -> tuple[bytes, NDArray[np.float64]]:
    """The head, and the values (chosen, block length), of what a client seals: block numbers (chosen,), then values.

    `ParameterError` unless the numbers are whole, ascending and of blocks of the layout, and the values as many as fit.
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
    """The block numbers (chosen,) that a contribution names, and the bytes behind them.

    `ContributionError` for another length than the plan's, and for numbers that do not ascend or name no block.
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
    """For mechanisms that need public routes: `ParameterError` when contributions choose their blocks."""
    if layout.chosen:
        raise ParameterError(f"{mechanism!r} sums need public routes: no contribution can choose the blocks it feeds")


def _ascending(layout: VectorLayout, numbers: NDArray[np.int64]) -> bool:
    fits = numbers.shape == (layout.chosen,) and numbers[0] >= 0 and numbers[-1] < len(layout.blocks)
    return bool(fits and (numbers[1:] > numbers[:-1]).all())
