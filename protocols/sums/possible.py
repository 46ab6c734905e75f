"""Whether an opened sum can be one of honest contributions: what server and members check before anybody uses it.

A member can add any numbers to a masked, one-shot or encrypted sum, and any party can put something else in its place.
What no honest clients add up to is treated like a sum that does not open: nobody uses it. Of n contributions,

| values | can be |
|---|---|
| counts | whole numbers from 0 to n times the clip; with noise, whole numbers within it |
| all others | within n times the clip, and within the bound on the sum where a recipe has proven one |
| all of a segment | of a norm of at most n times that of one contribution, or a proven one, and what noise adds |
| a Gram matrix, the sum of r^T r | as follows |

The diagonal of a Gram matrix has no negative number, and a sum of at most n times the bound on |r|^2. No other entry is
above the root of the product of the two on the diagonal (Cauchy and Schwarz).

Everywhere the plan's bound on the error of encoding is added. This says nothing about sums within these bounds: a
member may still add whatever the other contributions leave room for (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, Block, Floats, PartOfSum, Segment, VectorLayout
from protocols.sums.base import FixedPointPlan, SumPlan

_PIECE: Final = 2**16
"""Values that are read at a time, except of a Gram matrix, whose diagonal is needed with every row."""


def require_possible(plan: SumPlan, total: NDArray[np.float64], contributions: int) -> None:
    """Raise `CodecError`, with the name of the segment, unless `total` can be the sum of so many contributions.

    total: float64 (layout.length,), or `ParameterError`. Reactions to sums that members open must not show in requests,
    because what opening a made-up ciphertext shows depends on the secret key; a key holder must not publish it.
    """
    if total.shape != (plan.layout.length,):
        raise ParameterError(f"expected a vector of {plan.layout.length} values, got shape {total.shape}")
    require_possible_parts(plan, lambda start, stop: total[start:stop], contributions)


def require_possible_parts(plan: SumPlan, part: PartOfSum, contributions: int) -> None:
    """Do what `require_possible` does, for a sum that is read in parts, each once and in order."""
    layout = plan.layout
    if layout.chosen:
        _check_chosen(layout, part, contributions, plan.predicted_error)
        return
    errors = plan.segment_errors if isinstance(plan, FixedPointPlan) else {}
    start = 0
    for block in layout.blocks:
        for segment in block.segments:
            error = 0.0 if segment.integral else errors.get(f"{block.name}/{segment.name}", plan.predicted_error)
            stop = start + segment.length
            fault = (_fault_of_gram if segment.gram else _fault)(segment, part, start, contributions, error)
            if fault is not None:
                raise _impossible(block, segment, fault, contributions)
            start = stop


def _impossible(block: Block, segment: Segment, fault: str, contributions: int) -> CodecError:
    return CodecError(
        f"{block.name}/{segment.name} of the opened sum holds {fault} that no sum of {contributions} contributions has"
    )


def _check_chosen(layout: VectorLayout, part: PartOfSum, contributions: int, error: float) -> None:
    """Check the values of a sum whose blocks all have the segments of the first one, and no norm."""
    block, count = layout.blocks[0], len(layout.blocks)
    rows = max(1, _PIECE // block.length)
    for first in range(0, count, rows):
        last = min(first + rows, count)
        values = part(first * block.length, last * block.length).reshape(-1, block.length)
        for segment, (start, stop) in zip(block.segments, block.spans().values(), strict=True):
            allowed = 0.0 if segment.integral else error
            if not _are_possible(segment, values[:, start:stop], contributions, allowed):
                raise _impossible(block, segment, "a value", contributions)


def _fault(segment: Segment, part: PartOfSum, start: int, contributions: int, error: float) -> str | None:
    """Return what is wrong with a segment that begins at `start`, None if nothing is."""
    squares = 0.0
    for values in _pieces(part, start, segment.length):
        if not _are_possible(segment, values, contributions, error):
            return "a value"
        squares += float(values @ values)
    longest = segment.norm_of_sum(contributions) + error * sqrt(segment.length)
    return None if sqrt(squares) <= longest * CLIP_SLACK else "values of a norm"


def _pieces(part: PartOfSum, start: int, length: int) -> Iterator[Floats]:
    for first in range(start, start + length, _PIECE):
        yield part(first, min(first + _PIECE, start + length))


def _are_possible(segment: Segment, values: Floats, contributions: int, error: float) -> bool:
    largest = segment.bound_on_sum(contributions) * CLIP_SLACK + error
    smallest = 0.0 if segment.integral and not segment.signed else -largest
    inside = bool(values.min() >= smallest and values.max() <= largest)  # False for NaN
    return inside and not (segment.integral and not np.array_equal(values, np.rint(values)))


def _fault_of_gram(segment: Segment, part: PartOfSum, start: int, contributions: int, error: float) -> str | None:
    """Return what is wrong with the upper triangle, row by row, of a sum of r^T r.

    Every |r| of a contribution is at most the root of the segment's norm.
    """
    upper = part(start, start + segment.length)
    if not _are_possible(segment, upper, contributions, error):
        return "a value"
    rows = order_of_triangle(segment.length)
    edges = np.cumsum([0, *range(rows, 1, -1)])  # where each row begins: its place on the diagonal
    diagonal = upper[edges]
    if diagonal.min() < -error:
        return "a negative square"
    if segment.norm is not None and diagonal.sum() > (contributions * segment.norm + rows * error) * CLIP_SLACK:
        return "a trace"
    lengths = np.sqrt(np.maximum(diagonal, 0.0) + error)
    for row, first in enumerate(edges):
        if not (np.abs(upper[first : first + rows - row]) <= (lengths[row] * lengths[row:] + error) * CLIP_SLACK).all():
            return "a product"
    return None  # the norm of such a matrix is at most its trace


def order_of_triangle(length: int) -> int:
    """Return the n of an upper triangle of n (n + 1) / 2 values; `ParameterError` for a length that none has."""
    order = (isqrt(8 * length + 1) - 1) // 2
    if order * (order + 1) // 2 != length:
        raise ParameterError(f"{length} values are no triangle of a matrix")
    return order
