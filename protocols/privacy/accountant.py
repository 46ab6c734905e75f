"""The privacy cost of clipped values with noise: of each value, of a vector, and of all rounds together.

The guarantee is about what one client sends, against everyone who sees it. ANY two inputs are neighbours: the user's
whole contribution is replaced, so every coordinate may change by 2 * clip, in every round. Secure sums, sampling and
other clients' noise do not reduce the cost: local privacy does not rely on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocols.errors import ParameterError
from protocols.privacy.laplace import LaplaceNoise

DELTA: Final = 1e-5
_ORDERS: Final = 1 + np.geomspace(1e-9, 1e6, 6001)
"""Renyi orders that are tried; each gives a valid bound, so their minimum is valid."""
_READABLE: Final = 14.0
"""Above this epsilon, odds are shown as a power of ten: e**14 is 1.2 million."""


@dataclass(frozen=True)
class PrivacyCost:
    """The privacy cost to one client of sending `coordinates` values per round for `rounds` rounds.

    sensitivity: largest change of one coordinate when the user's data is replaced. epsilon_*: pure differential privacy
    of one coordinate in one round, of one round, and of all rounds (basic composition, Dwork et al. 2006). advanced,
    renyi: epsilon of all rounds at `delta`, by advanced and by Renyi composition; renyi_order: the order of the latter.
    """

    noise: LaplaceNoise
    coordinates: int
    rounds: int
    delta: float
    sensitivity: float
    epsilon_coordinate: float
    epsilon_round: float
    epsilon_total: float
    advanced: float
    renyi: float
    renyi_order: float

    @property
    def epsilon_at_delta(self) -> float:
        """The smallest proven epsilon of all rounds at `delta`; pure privacy holds at every delta."""
        return min(self.epsilon_total, self.advanced, self.renyi)

    @property
    def scale_for_one(self) -> float:
        """The Laplace scale at which all rounds together cost epsilon = 1 by basic composition."""
        return self.sensitivity * self.coordinates * self.rounds

    def noise_of_mean(self, clients: int) -> float:
        """Return the standard deviation of the noise in the mean of n contributions: b * sqrt(2 / n).

        Raises `ParameterError` for less than 1 client.
        """
        if clients < 1:
            raise ParameterError(f"a mean needs at least 1 client, got {clients}")
        return self.noise.scale * math.sqrt(2 / clients)


def laplace_cost(noise: LaplaceNoise, coordinates: int, rounds: int, delta: float = DELTA) -> PrivacyCost:
    """Return the cost of sending `coordinates` values with the noise of `privatise` in each of `rounds` rounds.

    Raises `ParameterError` unless there is at least one coordinate and one round, and 0 < delta < 1.
    """
    if coordinates < 1 or rounds < 1:
        raise ParameterError(f"at least 1 value and 1 round are needed, got {coordinates} and {rounds}")
    if not 0 < delta < 1:
        raise ParameterError(f"delta must be a probability above 0 and below 1, got {delta}")
    each, releases = noise.epsilon, coordinates * rounds
    renyi, order = renyi_epsilon(each, releases, delta)
    return PrivacyCost(
        noise=noise,
        coordinates=coordinates,
        rounds=rounds,
        delta=delta,
        sensitivity=2 * noise.clip,
        epsilon_coordinate=each,
        epsilon_round=each * coordinates,
        epsilon_total=each * releases,
        advanced=advanced_epsilon(each, releases, delta),
        renyi=renyi,
        renyi_order=order,
    )


def advanced_epsilon(epsilon: float, releases: int, delta: float) -> float:
    """Return epsilon at `delta` of k releases of pure `epsilon` e: k e tanh(e / 2) + e sqrt(2 k ln(1 / delta)).

    Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy" (ICML 2015), theorem 3.4, the bound
    of Dwork, Rothblum and Vadhan (FOCS 2010) with (e^e - 1) / (e^e + 1) instead of e^e - 1.
    """
    spread = epsilon * math.sqrt(2 * releases * math.log(1 / delta))
    return releases * epsilon * math.tanh(epsilon / 2) + spread


def renyi_divergence(epsilon: float, order: float) -> float:
    """Return the Renyi divergence of `order` > 1 between two Laplace distributions `epsilon` scales apart.

    Mironov, "Renyi Differential Privacy" (CSF 2017), proposition 6: with a the order and e the distance, 1 / (a - 1)
    times the log of a / (2a - 1) exp((a - 1) e) + (a - 1) / (2a - 1) exp(-a e). The divergence of the discrete
    distributions that are used differs by a factor of less than 1e-12, as their steps are 2**-20 of a scale.
    """
    above = order - 1
    share = order / (order + above)
    if above * epsilon < 1:  # both terms are close to their weights, which add up to 1
        moved = share * math.expm1(above * epsilon) + (1 - share) * math.expm1(-order * epsilon)
        return math.log1p(moved) / above
    rest = (1 - share) / share * math.exp(-(order + above) * epsilon)
    return epsilon + (math.log(share) + math.log1p(rest)) / above


def renyi_epsilon(epsilon: float, releases: int, delta: float) -> tuple[float, float]:
    """Return epsilon at `delta` of `releases` Laplace releases by Renyi composition, and the best order.

    Mironov 2017, propositions 1 and 3: divergences add up, and order a adds ln(1 / delta) / (a - 1).
    """
    found = [releases * renyi_divergence(epsilon, a) + math.log(1 / delta) / (a - 1) for a in _ORDERS.tolist()]
    best = int(np.argmin(found))
    return found[best], float(_ORDERS[best])


def odds(epsilon: float) -> str:
    """Return the meaning of `epsilon` as odds, such as "2.718 to 1": how far a release may shift even odds."""
    if epsilon <= _READABLE:
        return f"{math.exp(epsilon):,.4g} to 1" if epsilon < math.log(1000) else f"{math.exp(epsilon):,.0f} to 1"
    return f"10^{epsilon / math.log(10):,.0f} to 1"
