"""How much noise each client adds to each sum of a task, from the task's privacy block.

The noise of the honest clients of the smallest allowed round alone reaches the target: `min_clients` of the schedule
less the share `corrupt` of a cohort. More clients make the noise larger, never smaller than this. In every sum its
deviation is the same multiple of the L2 bound on a contribution.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, sqrt
from typing import Final

from protocols.errors import ParameterError
from protocols.privacy.renyi import Curve, Sensitive, skellam_curve, smallest_multiplier
from protocols.privacy.skellam import MAX_VARIANCE, largest_skellam

__all__ = ["NoiseTerms", "SumNoise", "bound_in_steps", "within_steps"]

_LEAST_BOUND: Final = 64
_FINENESS: Final = 6
"""An L2 bound of 6 times the rounding of n values, sqrt(n) / 2: rounding shortens a vector by up to 1.5 %."""
_WITHIN: Final = 10
"""The count of clients within the bound has a tenth of the weight of the update, which adds 0.5 % to the noise."""


@dataclass(frozen=True)
class SumNoise:
    """The noise in one kind of sum; all figures in steps, the whole numbers in which the sum is computed.

    bound: L2 norm of a contribution, at most. l1: its L1 norm, at most. share: variance of what each client adds to
    each value. largest: size of a value of a contribution with its noise, at most.
    """

    bound: float
    l1: float
    share: float

    @property
    def largest(self) -> int:
        """Largest size of a value of a contribution, noise included."""
        return ceil(self.bound) + largest_skellam(self.share)

    def deviation(self, contributions: int) -> float:
        """Return the standard deviation of the noise in a value of a sum of so many contributions."""
        return sqrt(self.share * contributions)

    def curve(self, honest: int) -> Curve:
        """Return what one contribution costs, with the noise of `honest` clients; see `protocols.privacy.renyi`."""
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
    """What the noise of a task follows from. sums: most contributions of one client. honest: clients counted on."""

    epsilon: float
    delta: float
    sums: int
    honest: int

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

    def multiplier(self, kinds: Collection[Sensitive]) -> float:
        """Return the deviation of the honest clients' noise in units of the L2 bound; see `smallest_multiplier`.

        kinds: the sensitivities of the task's sums.
        """
        return _multiplier(tuple(sorted(set(kinds))), self.sums, self.epsilon, self.delta)

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


@lru_cache(maxsize=64)
def _multiplier(kinds: tuple[Sensitive, ...], sums: int, epsilon: float, delta: float) -> float:
    return smallest_multiplier(kinds, sums, epsilon, delta)
