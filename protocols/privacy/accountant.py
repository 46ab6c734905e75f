"""What clipped and noised values cost in privacy: each one, a vector of them, and all rounds together.

The guarantee is of what one client sends, against everyone who sees it, and its neighbouring inputs are ANY two: the
user's whole contribution is replaced, so every coordinate may move by 2 * clip, in every round. Nothing is subtracted
for secure sums, for sampling, or for other clients' noise: with local privacy none of them is relied upon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocols.errors import ParameterError
from protocols.privacy.laplace import LaplaceNoise

__all__ = ["DELTA", "PrivacyCost", "advanced_epsilon", "laplace_cost", "odds", "renyi_divergence", "renyi_epsilon"]

DELTA: Final = 1e-5
_ORDERS: Final = 1 + np.geomspace(1e-9, 1e6, 6001)
"""Orders that are tried: each gives a bound that holds, so the least of them does."""
_READABLE: Final = 14.0
"""Above this an epsilon is shown as a power of ten: e**14 is 1.2 million."""


@dataclass(frozen=True)
class PrivacyCost:
    """What `coordinates` values a round cost one client over `rounds` rounds.

    sensitivity: how far one coordinate can move when the user's data is replaced. epsilon_*: pure differential privacy
    of one coordinate in one round, of one round, of all rounds (sums: basic composition, Dwork et al. 2006). advanced,
    renyi: epsilon of all rounds, if with probability `delta` the bound may fail; renyi_order: where it was found.
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
        """The least epsilon that is proven for all rounds at `delta`: pure privacy holds at every delta."""
        return min(self.epsilon_total, self.advanced, self.renyi)

    @property
    def scale_for_one(self) -> float:
        """The Laplace scale at which all rounds together would cost epsilon = 1 by basic composition."""
        return self.sensitivity * self.coordinates * self.rounds

    def noise_of_mean(self, clients: int) -> float:
        """Standard deviation of the noise in the mean of so many contributions: b * sqrt(2 / n)."""
        if clients < 1:
            raise ParameterError(f"a mean is over at least 1 client, got {clients}")
        return self.noise.scale * math.sqrt(2 / clients)


def laplace_cost(noise: LaplaceNoise, coordinates: int, rounds: int, delta: float = DELTA) -> PrivacyCost:
    """What sending `coordinates` values noised by `privatise` costs a client that is in `rounds` rounds.

    `ParameterError` unless there is at least one coordinate and one round, and 0 < delta < 1.
    """
    if coordinates < 1 or rounds < 1:
        raise ParameterError(f"at least 1 value and 1 round are needed, got {coordinates} and {rounds}")
    if not 0 < delta < 1:
        raise ParameterError(f"delta is a probability above 0 and below 1, got {delta}")
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
    """Epsilon at `delta` of `releases` releases, each of pure `epsilon`: k e tanh(e / 2) + e sqrt(2 k ln(1 / delta)).

    Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy" (ICML 2015), theorem 3.4, the bound
    of Dwork, Rothblum and Vadhan (FOCS 2010) with (e^e - 1) / (e^e + 1) for their e^e - 1.
    """
    spread = epsilon * math.sqrt(2 * releases * math.log(1 / delta))
    return releases * epsilon * math.tanh(epsilon / 2) + spread


def renyi_divergence(epsilon: float, order: float) -> float:
    """Renyi divergence of `order` > 1 between two Laplace laws `epsilon` scales apart.

    Mironov, "Renyi Differential Privacy" (CSF 2017), proposition 6: with a the order and e the distance, 1 / (a - 1)
    times the log of a / (2a - 1) exp((a - 1) e) + (a - 1) / (2a - 1) exp(-a e). That of the discrete laws which are
    sent differs by less than a millionth of a millionth of it, their steps being 2**-20 of a scale.
    """
    above = order - 1
    share = order / (order + above)
    if above * epsilon < 1:  # both terms near their weights, which add up to 1
        moved = share * math.expm1(above * epsilon) + (1 - share) * math.expm1(-order * epsilon)
        return math.log1p(moved) / above
    rest = (1 - share) / share * math.exp(-(order + above) * epsilon)
    return epsilon + (math.log(share) + math.log1p(rest)) / above


def renyi_epsilon(epsilon: float, releases: int, delta: float) -> tuple[float, float]:
    """Epsilon at `delta` of `releases` Laplace releases by Renyi composition, and the order that gives it.

    Mironov 2017, propositions 1 and 3: divergences add up, and order a costs ln(1 / delta) / (a - 1) on top.
    """
    found = [releases * renyi_divergence(epsilon, a) + math.log(1 / delta) / (a - 1) for a in _ORDERS.tolist()]
    best = int(np.argmin(found))
    return found[best], float(_ORDERS[best])


def odds(epsilon: float) -> str:
    """What `epsilon` allows, in plain words: how far even odds between two inputs may tip for who sees the release."""
    if epsilon <= _READABLE:
        return f"{math.exp(epsilon):,.4g} to 1" if epsilon < math.log(1000) else f"{math.exp(epsilon):,.0f} to 1"
    return f"10^{epsilon / math.log(10):,.0f} to 1"
