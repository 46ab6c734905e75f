"""Whether an opened sum can be the sum of honest contributions: counts within 0..n, values within n * clip.

Any party can make a ciphertext of something else and put it in the place of the sum. What opening such a ciphertext
shows depends on the secret key or on one client's contribution, so nobody may react to it visibly, and a key holder
must not publish it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError, ParameterError
from protocols.sums.base import SumPlan

__all__ = ["require_possible"]

_SLACK = 1.0 + 2.0**-22
"""Relative amount by which a value may exceed its clip, for float32 rounding of the clip itself."""


def require_possible(plan: SumPlan, total: NDArray[np.float64], contributions: int) -> None:
    """Raise `CodecError` unless `total`, float64 (layout.length,), can be the sum of so many contributions.

    Counts must be whole numbers from 0 to contributions * clip, and all other values within the segment's bound on the
    sum plus the plan's error bound. Raises `ParameterError` for a vector of another shape.
    """
    layout = plan.layout
    if total.shape != (layout.length,):
        raise ParameterError(f"expected a vector of {layout.length} values, got shape {total.shape}")
    if layout.chosen:  # all blocks have the segments of the first
        rows, blocks = [total.reshape(len(layout.blocks), -1)], layout.blocks[:1]
    else:
        rows, blocks = [part[np.newaxis] for part in layout.split(total)], layout.blocks
    for block, values in zip(blocks, rows, strict=True):
        start = 0
        for segment in block.segments:
            part = values[:, start : start + segment.length]
            start += segment.length
            largest = segment.bound_on_sum(contributions) * _SLACK + (0.0 if segment.integral else plan.predicted_error)
            smallest = 0.0 if segment.integral else -largest
            possible = bool(part.min() >= smallest and part.max() <= largest)  # False for NaN
            if not possible or (segment.integral and not np.array_equal(part, np.rint(part))):
                raise CodecError(
                    f"{block.name}/{segment.name} of the opened sum holds a value that no sum of {contributions} "
                    "contributions has"
                )
