"""The key holder's check of an opened sum in public mode, before it is flooded and published.

A client can upload any pair of polynomials. A pair (0, M) adds M*s to the opened sum, where s is the secret key. The
slots of an honest sum satisfy conditions that M*s hardly satisfies by accident:

- the real and imaginary parts of the slots that carry values are at most the number of contributions in size;
- the slots that pad a block to whole ciphertexts are zero;
- the slots that carry counts are whole numbers that are not negative;

each up to the noise of encryption. The noise of a public-key encryption in one slot is a product of two complex
Gaussians, of the key's error and of the sum of the encryptions' secrets: beyond t standard deviations with probability
about sqrt(pi*t) * exp(-2t). TOLERANCE = 32 deviations are exceeded with probability about 2^-89 a slot.

The check is necessary, but it does not replace fresh keys: an M that is small where values are and zero elsewhere
passes, and the published sum then reveals the key of this round.
"""

from __future__ import annotations

from itertools import accumulate
from math import log2, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ImpossibleSumError
from protocols.layout import Block
from protocols.sums.ckks.planner import SLACK, CkksPlan

__all__ = ["TOLERANCE", "check_slots", "slot_tolerance"]

TOLERANCE: Final = 32.0
"""Standard deviations of the encryption noise that an honest slot may deviate."""


def slot_tolerance(plan: CkksPlan) -> float:
    """Return the largest deviation of an honest slot before flooding, relative to the clip."""
    transforms = plan.max_contributions * sqrt(2.0) * (2 * log2(plan.degree) + 4) * 2.0**-52
    return TOLERANCE * plan.noise_deviation + transforms


def check_slots(plan: CkksPlan, slots: NDArray[np.complex128], contributions: int) -> None:
    """Raise `ImpossibleSumError` unless `contributions` honest ones can add up to the opened slots.

    slots: complex128 (ciphertexts, degree/2), before flooding, relative to the clip. The error's text names the block
    and the condition, and no value.
    """
    tolerance = slot_tolerance(plan)
    for block, start, count in zip(plan.layout.blocks, plan.block_starts, plan.block_ciphertexts, strict=True):
        values = np.ascontiguousarray(slots[start : start + count]).view(np.float64).reshape(-1)
        if not np.abs(values[block.length :]).max(initial=0.0) <= tolerance:
            raise ImpossibleSumError(f"block {block.name!r} of the opened sum is not zero where it must be")
        _check_values(block, values[: block.length], contributions, tolerance)


def _check_values(block: Block, values: NDArray[np.float64], contributions: int, tolerance: float) -> None:
    edges = accumulate((segment.length for segment in block.segments), initial=0)
    for segment, start in zip(block.segments, edges, strict=False):
        part = values[start : start + segment.length]
        name = f"segment '{block.name}/{segment.name}' of the opened sum"
        if not np.abs(part).max() <= contributions * SLACK + tolerance:
            raise ImpossibleSumError(f"{name} has values beyond what {contributions} contributions can add up to")
        if not segment.integral:
            continue
        counts, error = part * segment.clip, tolerance * segment.clip
        if counts.min() < -error or np.abs(counts - np.rint(counts)).max() > error:
            raise ImpossibleSumError(f"{name} has counts that are negative or not whole numbers")
