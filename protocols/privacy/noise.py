"""The noise of a privacy block: what sums with it cost, how much each client adds to each, rounding, and the draws.

**Cost.** Neighbours are two runs that differ in one client: in one of them its contributions are replaced by zeros. How
many clients are in a sum is public, and so it is equal in both. A curve is the bound on the Renyi divergence at each of
`ORDERS`, float64 (orders,); the curves of several sums add up (Mironov, "Renyi Differential Privacy", CSF 2017,
proposition 1), over sums, tasks and mechanisms.

**Amount.** The noise of the honest clients of the smallest allowed round alone reaches the target: `min_clients` of the
schedule less the share `corrupt` of a cohort. More clients make the noise larger, never smaller than this. In every sum
its deviation is the same multiple of the L2 bound on a contribution.

**Rounding** (Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation", ICML 2021, section 2.2): each value is rounded up with the probability of its fraction, and the whole
vector is rounded again until its norm is within the bound. Their bound follows from the length of the vector. Here the
bound is given, and the vector is shortened first where its rounding could not keep it: a vector with few values that
are not whole, such as that of a client with few items, keeps its length.

**Skellam noise** (Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
NeurIPS 2021) is the difference of two Poisson variables. The sum of independent Skellam variables is one of the sum of
their variances. So every client adds a share, and the noise of a sum depends only on how many shares are in it: a
client that drops out takes its own share with it and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from functools import lru_cache
from math import ceil, floor, isfinite, log2, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.random import FINE_BITS, Randomness, cumulative_table, fine_samples
from protocols.errors import ParameterError
from protocols.layout import Floats, norm_of

ORDERS: Final = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Renyi orders: whole numbers, because the theorem for Skellam noise is for these."""

RenyiCurve = Floats
Sensitive = tuple[float, float]  # the L1 and the L2 norm of what one client can add to a sum, in steps

_A: Final = np.array(ORDERS, np.float64)
_NEXT_TO_NOTHING: Final = 1e-12  # a divergence, of noise 10^6 times as large as any L2 bound


def skellam_curve(sensitive: Sensitive, variance: float) -> RenyiCurve:
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


def epsilon_of(curve: RenyiCurve, delta: float) -> float:
    """Return the smallest epsilon at `delta` that follows from a curve; 0.0 for the curve of no sum.

    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020), proposition 12:
    R + ln((a - 1) / a) - (ln delta + ln a) / (a - 1). Raises `ParameterError` unless 0 < delta < 1.
    """
    if not 0 < delta < 1:
        raise ParameterError(f"delta must be a probability above 0 and below 1, got {delta:g}")
    if not curve.any():
        return 0.0
    return max(0.0, float(np.min(curve + np.log1p(-1 / _A) - (math.log(delta) + np.log(_A)) / (_A - 1))))


@lru_cache(maxsize=64)
def smallest_multiplier(kinds: tuple[Sensitive, ...], sums: int, epsilon: float, delta: float) -> float:
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

    def keeps(z: float) -> bool:  # from some z on
        worst = np.max([skellam_curve((l1, l2), (z * l2) ** 2) for l1, l2 in kinds], axis=0)
        return epsilon_of(sums * worst, delta) <= epsilon

    high = 1.0
    while not keeps(high):
        high *= 2
    low = high / 2
    while keeps(low):
        high, low = low, low / 2
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


_LEAST_BOUND: Final = 64
_FINENESS: Final = 6
"""An L2 bound of 6 times the rounding of n values, sqrt(n) / 2: rounding shortens a vector by up to 1.5 %."""
_WITHIN: Final = 10
"""The count of clients within the bound has a tenth of the weight of the update, which adds 0.5 % to the noise."""
_TRIES: Final = 128  # a try fails with a probability of at most 0.61, and all of them with 2^-91
_SLACK: Final = 2.0**-40  # of a bound that is the root of a whole number, such as that of counts
MAX_VARIANCE: Final = 2.0**22
"""Largest variance of a share: its table has 27,000 entries, 19,000 of which are compared with every sample."""
_SAMPLE_DISTANCE: Final = -112.0  # log2 of the statistical distance of a sample: at most 2^15 entries of 127 bits
_DIGITS: Final = 50


@dataclass(frozen=True)
class SumNoise:
    """The noise in one kind of sum; all figures in steps, the whole numbers in which the sum is computed.

    largest: size of a value of a contribution with its noise, at most.
    """

    bound: float
    """L2 norm of a contribution, at most."""
    l1: float
    """Its L1 norm, at most."""
    share: float
    """Variance of what each client adds to each value."""

    @property
    def largest(self) -> int:
        """Largest size of a value of a contribution, noise included."""
        return ceil(self.bound) + largest_skellam(self.share)

    def deviation(self, contributions: int) -> float:
        """Return the standard deviation of the noise in a value of a sum of so many contributions."""
        return sqrt(self.share * contributions)

    def curve(self, honest: int) -> RenyiCurve:
        """Return what one contribution costs, with the noise of `honest` clients: `skellam_curve`."""
        return skellam_curve((self.l1, self.bound), self.share * honest)


def bound_in_steps(values: int) -> int:
    """Return the L2 bound, in steps, of contributions with so many values that are not whole numbers.

    With more values the bound holds all the same, but rounding shortens the vector by more.
    """
    return max(_LEAST_BOUND, ceil(_FINENESS * sqrt(values) / 2))


def within_steps(bound: int) -> int:
    """Return the steps by which a client says that its update is within the task's bound."""
    return ceil(bound / _WITHIN)


@dataclass(frozen=True)
class NoiseTerms:
    """What the noise of a task follows from."""

    epsilon: float
    delta: float
    sums: int
    """Most contributions of one client."""
    honest: int
    """Clients counted on."""

    @classmethod
    def of(
        cls, epsilon: float, delta: float, sums: int, corrupt: float, cohort_size: int, min_clients: int
    ) -> NoiseTerms:
        """Return the terms of a task; corrupt: share of a cohort.

        Raises `ParameterError` when all clients of the smallest round could be corrupt.
        """
        honest = min_clients - floor(corrupt * cohort_size)
        if honest < 1:
            raise ParameterError(
                f"privacy: of min_clients {min_clients}, corrupt {corrupt:g} of a cohort of {cohort_size} leaves no "
                "client whose noise can be counted on: raise min_clients, or lower corrupt"
            )
        return cls(epsilon, delta, sums, honest)

    def with_exact_delta(self, values: int) -> NoiseTerms:
        """Return the terms of exact noise, whose delta is smaller by what the sampler's distance may cost.

        values: of the longest sum. If samples are within t of exact ones, both of two neighbouring runs are within t
        times the number of samples, which costs 1 + e^epsilon times as much delta. Raises `ParameterError` where it is
        more than a thousandth of delta, which takes an epsilon above 20.
        """
        exponent = (self.epsilon + math.log1p(math.exp(-self.epsilon))) / math.log(2)
        cost = exponent + log2(values * self.honest * self.sums) + _SAMPLE_DISTANCE
        if cost > log2(self.delta / 1000):
            raise ParameterError(
                f"privacy: noise cannot be drawn exactly enough for epsilon {self.epsilon:g} at delta {self.delta:g} "
                f"in {self.sums} sums of {values:,} values: lower epsilon"
            )
        return replace(self, delta=self.delta - 2.0**cost)

    def multiplier(self, kinds: Collection[Sensitive]) -> float:
        """Return the deviation of the honest clients' noise in units of the L2 bound; see `smallest_multiplier`.

        kinds: the sensitivities of the task's sums.
        """
        return smallest_multiplier(tuple(sorted(set(kinds))), self.sums, self.epsilon, self.delta)

    def noise(self, sensitive: Sensitive, multiplier: float) -> SumNoise:
        """Return the noise of a sum; `ParameterError` where a share would be too large to draw."""
        l1, bound = sensitive
        share = (multiplier * bound) ** 2 / self.honest
        if share > MAX_VARIANCE:
            raise ParameterError(
                f"privacy: each of {self.honest} clients would have to add noise of deviation {sqrt(share):,.0f} steps "
                f"to each value, over {sqrt(MAX_VARIANCE):,.0f}: raise epsilon or min_clients, or shrink the model"
            )
        return SumNoise(bound, l1, share)


def longest_norm(bound: float, fractions: int) -> float:
    """Return the longest norm of a vector, `fractions` of its values not whole, that is rounded to at most `bound`.

    The r with r^2 + n / 4 + r + sqrt(n) / 2 = bound^2: by their proposition 4 with beta = exp(-1/2), at least 39 % of
    the roundings are within. Negative if even a vector of small values can hardly keep it.
    """
    if not fractions:
        return bound
    inside = bound**2 - (sqrt(fractions) / 2 + 0.5) ** 2 + 0.5
    return sqrt(inside) - 0.5 if inside > 0 else -1.0


def round_within(values: Floats, bound: float, random: Randomness) -> tuple[NDArray[np.int64], float]:
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


def _scale(values: Floats, norm: float, bound: float) -> float:
    """Return by what `values`, none of them 0, are multiplied so that their rounding keeps the bound."""
    fractions = int(np.count_nonzero(values != np.rint(values)))
    if norm <= longest_norm(bound, fractions):
        return 1.0
    longest = longest_norm(bound, values.size)  # scaled values need not be whole any more
    if longest <= 0:
        raise ParameterError(f"{values.size} values cannot be rounded within a norm of {bound:g} steps")
    return min(1.0, longest / norm)


@lru_cache(maxsize=32)
def skellam_table(variance: float) -> tuple[int, ...]:
    """Return floor(2^127 * Pr[|X| <= k]) for k = 0, 1, ... of the symmetric Skellam variable of this variance.

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
        return cumulative_table([here, *reversed(downward)], FINE_BITS)


def largest_skellam(variance: float) -> int:
    """Return the largest size of a sample of `skellam`."""
    return len(skellam_table(variance))


def skellam(count: int, variance: float, random: Randomness) -> NDArray[np.int64]:
    """Return `count` independent Skellam variables of this variance, int64; see `fine_samples` for `random`.

    In constant time; within 2^-112 of the exact distribution (statistical distance), tail included. Raises
    `ParameterError` as `skellam_table` does.
    """
    return fine_samples(count, skellam_table(variance), random)
