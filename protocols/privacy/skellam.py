"""Skellam noise: the difference of two Poisson variables, which is closed under summation.

Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning" (NeurIPS 2021). The sum
of independent Skellam variables is one of the sum of their variances. So every client adds a share, and the noise of a
sum depends only on how many shares are in it: a client that drops out takes its own share with it and nothing else.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import lru_cache
from math import ceil, isfinite, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.random import Randomness, cumulative_table, symmetric_samples
from protocols.errors import ParameterError

__all__ = ["MAX_VARIANCE", "largest_skellam", "skellam", "skellam_table"]

MAX_VARIANCE: Final = 2.0**22
"""Largest variance of a share: its table has 19,000 entries, each of which is compared with every sample."""
_DIGITS: Final = 50


@lru_cache(maxsize=32)
def skellam_table(variance: float) -> tuple[int, ...]:
    """Return floor(2^63 * Pr[|X| <= k]) for k = 0, 1, ... of the symmetric Skellam variable of this variance.

    Pr[X = k] = exp(-m) I_|k|(m), m the variance and I the modified Bessel function. Miller's recurrence, downward from
    far in the tail, I_(k-1) = I_(k+1) + (2 k / m) I_k, adds positive terms only, so it is stable; the sum of all
    probabilities is 1, which fixes the factor. 50 digits. Raises `ParameterError` unless 0 < variance <= MAX_VARIANCE.
    """
    if not (isfinite(variance) and 0 < variance <= MAX_VARIANCE):
        raise ParameterError(f"a share of noise has a variance above 0 and up to {MAX_VARIANCE:g}, got {variance:g}")
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(variance)
        above, here = Decimal(0), Decimal(1)
        downward = []
        for k in range(ceil(14 * sqrt(variance)) + 80, 0, -1):
            downward.append(2 * here)
            above, here = here, above + 2 * k / exact * here
        return cumulative_table([here, *reversed(downward)])


def largest_skellam(variance: float) -> int:
    """Return the largest size of a sample of `skellam`."""
    return len(skellam_table(variance))


def skellam(count: int, variance: float, random: Randomness) -> NDArray[np.int64]:
    """Return `count` independent Skellam variables of this variance, int64; takes 8 bytes each of `random`.

    In constant time; within 2^-48 of the exact distribution (statistical distance), tail included. Raises
    `ParameterError` as `skellam_table` does.
    """
    return symmetric_samples(count, skellam_table(variance), random)
