"""Random rounding to whole numbers that keeps a bound on the norm.

Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation"
(ICML 2021), section 2.2: each value is rounded up with the probability of its fraction, and the whole vector is rounded
again until its norm is within the bound. Their bound follows from the length of the vector. Here the bound is given,
and the vector is shortened first where its rounding could not keep it: a vector with few values that are not whole,
such as that of a client with few items, keeps its length.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.random import Randomness
from protocols.errors import ParameterError

__all__ = ["longest_norm", "norm_of", "round_within"]

_TRIES: Final = 128
"""A try fails with a probability of at most 0.61, and all of them with 2^-91."""
_SLACK: Final = 2.0**-40
"""Of a bound that is the root of a whole number, such as that of counts."""


def longest_norm(bound: float, fractions: int) -> float:
    """Return the longest norm of a vector, `fractions` of its values not whole, that is rounded to at most `bound`.

    The r with r^2 + n / 4 + r + sqrt(n) / 2 = bound^2: by their proposition 4 with beta = exp(-1/2), at least 39 % of
    the roundings are within. Negative if even a vector of small values can hardly keep it.
    """
    if not fractions:
        return bound
    inside = bound**2 - (sqrt(fractions) / 2 + 0.5) ** 2 + 0.5
    return sqrt(inside) - 0.5 if inside > 0 else -1.0


def round_within(values: NDArray[np.float64], bound: float, random: Randomness) -> tuple[NDArray[np.int64], float]:
    """Return `values` (n,) rounded at random to whole numbers of an L2 norm of at most `bound`, and their scale.

    scale: by which the values were multiplied first, at most 1. random: takes 8 bytes for each value but zeros, in each
    try. Raises `ParameterError` for values that are not finite, and for a bound that so many values cannot
    keep.
    """
    used = np.flatnonzero(values)
    given = values[used]
    norm = norm_of(given)
    if not np.isfinite(norm):
        raise ParameterError("values that are not finite cannot be rounded: training diverged")
    scale = _scale(given, norm, bound)
    scaled = given * scale
    whole = np.floor(scaled)
    chances = scaled - whole
    rounded = np.zeros(values.size, np.int64)
    for _ in range(_TRIES if chances.any() else 1):
        draws = (np.frombuffer(random(8 * used.size), "<u8") >> np.uint64(11)) * 2.0**-53
        steps = whole.astype(np.int64) + (draws < chances)
        if int((steps * steps).sum()) <= bound**2 * (1 + _SLACK):
            rounded[used] = steps
            return rounded, scale
    raise ParameterError(f"{values.size} values were not rounded within a norm of {bound:g} steps in {_TRIES} tries")


def norm_of(values: NDArray[np.float64]) -> float:
    """Return the L2 norm; squares of a few values need no matrix library and its threads."""
    return sqrt(float(np.square(values).sum()))


def _scale(values: NDArray[np.float64], norm: float, bound: float) -> float:
    """Return by what `values`, none of them 0, are multiplied so that their rounding keeps the bound."""
    fractions = int(np.count_nonzero(values != np.rint(values)))
    if norm <= longest_norm(bound, fractions):
        return 1.0
    longest = longest_norm(bound, values.size)  # scaled values need not be whole any more
    if longest <= 0:
        raise ParameterError(f"{values.size} values cannot be rounded within a norm of {bound:g} steps")
    return min(1.0, longest / norm)
