"""The privacy cost of sums with Skellam noise: Renyi divergences, their composition, and epsilon at a delta.

Neighbours are two runs that differ in one client: in one of them its contributions are replaced by zeros. How many
clients are in a sum is public, and so it is equal in both. A curve is the bound on the Renyi divergence at each of
`ORDERS`, float64 (orders,); the curves of several sums add up (Mironov, "Renyi Differential Privacy", CSF 2017,
proposition 1), over sums, tasks and mechanisms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError

ORDERS: Final = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Renyi orders: whole numbers, because the theorem for Skellam noise is for these."""

Curve = NDArray[np.float64]
Sensitive = tuple[float, float]
"""The L1 and the L2 norm of what one client can add to a sum, in steps."""

_A: Final = np.array(ORDERS, np.float64)
_NEXT_TO_NOTHING: Final = 1e-12
"""A divergence, of noise 10^6 times as large as any L2 bound."""


def skellam_curve(sensitive: Sensitive, variance: float) -> Curve:
    """Return the Renyi divergences of a sum of whole numbers with Skellam noise of this variance in each value.

    Agarwal, Kairouz and Liu (NeurIPS 2021), theorem 3.5, with D1, D2 the sensitivities and m the variance:
    a D2^2 / (2 m) + min(((2 a - 1) D2^2 + 6 D1) / (4 m^2), 3 D1 / (2 m)). Raises `ParameterError` for a variance or
    a sensitivity that is not positive.
    """
    l1, l2 = sensitive
    if not (variance > 0 and l1 > 0 and l2 > 0):
        raise ParameterError(f"variance and sensitivities must be positive, got {variance:g}, {l1:g} and {l2:g}")
    beyond = np.minimum(((2 * _A - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return np.asarray(_A * l2**2 / (2 * variance) + beyond)


def epsilon_of(curve: Curve, delta: float) -> float:
    """Return the smallest epsilon at `delta` that follows from a curve; 0.0 for the curve of no sum.

    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020), proposition 12:
    R + ln((a - 1) / a) - (ln delta + ln a) / (a - 1). Raises `ParameterError` unless 0 < delta < 1.
    """
    if not 0 < delta < 1:
        raise ParameterError(f"delta must be a probability above 0 and below 1, got {delta:g}")
    if not curve.any():
        return 0.0
    return max(0.0, float(np.min(curve + np.log1p(-1 / _A) - (math.log(delta) + np.log(_A)) / (_A - 1))))


def sampled_curve(curve: Curve, rate: float) -> Curve:
    """Return the curve of a sum over a sample: each client is in it with probability `rate`, independently.

    Steinke, "Composition of Differential Privacy & Privacy Amplification by Subsampling" (2022), theorem 11, for whole
    orders; other orders than those of the curve are bounded by the next one, since divergences grow with the order.
    It holds against somebody who does not know who is in the sample. Raises `ParameterError` unless 0 < rate <= 1.
    """
    if not 0 < rate <= 1:
        raise ParameterError(f"a sampling rate is above 0 and at most 1, got {rate:g}")
    if rate == 1 or not curve.any():
        return curve
    found = []
    for order in ORDERS:
        k = np.arange(order + 1, dtype=np.float64)
        chosen = [math.log(math.comb(order, j)) for j in range(order + 1)]
        own = np.concatenate([[0.0, 0.0], (k[2:] - 1) * curve[np.searchsorted(_A, k[2:])]])
        terms = np.array(chosen) + k * math.log(rate) + (order - k) * math.log1p(-rate) + own
        # k = 0 and 1: (1 - rate)^(a - 1) (1 + (a - 1) rate), which the terms add up to
        top = float(terms.max())
        found.append((top + math.log(float(np.exp(terms - top).sum()))) / (order - 1))
    return np.asarray(np.minimum(np.array(found), curve))


def smallest_multiplier(kinds: Collection[Sensitive], sums: int, epsilon: float, delta: float) -> float:
    """Return the smallest z at which noise of deviation z * L2 in each of `sums` costs at most `epsilon` at `delta`.

    kinds: the sensitivities of the sums; whichever of them a client's data enter, the cost is at most this. The result
    is within a millionth above the smallest. Raises `ParameterError` unless epsilon > 0, 0 < delta < 1 and there is a
    sum; and for an epsilon that no noise gives, because of the largest of the orders.
    """
    if not (math.isfinite(epsilon) and epsilon > 0) or not kinds or sums < 1:
        raise ParameterError(f"a positive epsilon and at least one sum are needed, got {epsilon:g} and {sums}")

    least = epsilon_of(np.full(_A.size, _NEXT_TO_NOTHING), delta)
    if epsilon <= least:
        raise ParameterError(
            f"privacy: no noise gives epsilon {epsilon:g} at delta {delta:g} by this accountant: choose an epsilon "
            f"above {least:.3g}, or a larger delta"
        )

    def costs(z: float) -> float:
        worst = np.max([skellam_curve((l1, l2), (z * l2) ** 2) for l1, l2 in kinds], axis=0)
        return epsilon_of(sums * worst, delta)

    return _least(lambda z: costs(z) <= epsilon)


def _least(holds: Callable[[float], bool]) -> float:
    """Return a z that `holds`, at most a millionth above one that does not; `holds` is true from some z on."""
    high = 1.0
    while not holds(high):
        high *= 2
    low = high / 2
    while holds(low):
        high, low = low, low / 2
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
