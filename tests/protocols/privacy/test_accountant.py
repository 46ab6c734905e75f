"""The accountant's figures against hand-computed values, closed forms, and integrals of the distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from protocols.errors import ParameterError
from protocols.privacy.accountant import (
    advanced_epsilon,
    laplace_cost,
    odds,
    renyi_divergence,
    renyi_epsilon,
)
from protocols.privacy.laplace import LaplaceNoise

ML1M = 3706 * 20


def test_rfrec_on_movielens() -> None:
    cost = laplace_cost(LaplaceNoise(clip=0.2, scale=0.04), ML1M, 100)
    assert cost.sensitivity == pytest.approx(0.4)
    assert cost.epsilon_coordinate == pytest.approx(10)
    assert cost.epsilon_round == pytest.approx(741_200)
    assert cost.epsilon_total == pytest.approx(74_120_000)
    assert cost.epsilon_at_delta == cost.renyi
    assert 9.0 * 7_412_000 < cost.renyi < 9.01 * 7_412_000, "the mean loss of a release is 9, and hardly varies in sum"
    assert cost.noise_of_mean(6040) == pytest.approx(0.000728, abs=1e-6)
    assert cost.scale_for_one == pytest.approx(0.4 * 7_412_000)
    assert laplace_cost(LaplaceNoise(clip=0.2, scale=cost.scale_for_one), ML1M, 100).epsilon_total == pytest.approx(1)


@pytest.mark.parametrize(("epsilon", "order"), [(0.1, 1.5), (1.0, 2.0), (3.0, 8.0), (10.0, 1.01)])
def test_renyi_divergence_is_that_of_two_laplace_laws(epsilon: float, order: float) -> None:
    here, there = stats.laplace(), stats.laplace(loc=epsilon)

    def ratio(x: float) -> float:
        return float(np.exp(order * here.logpdf(x) + (1 - order) * there.logpdf(x)))

    moment = sum(integrate.quad(ratio, a, b)[0] for a, b in ((-50, 0), (0, epsilon), (epsilon, epsilon + 50)))
    assert renyi_divergence(epsilon, order) == pytest.approx(math.log(moment) / (order - 1), rel=1e-7)


@pytest.mark.parametrize("order", [1.001, 1.5, 20.0])
def test_the_discrete_laws_that_are_sent_have_the_same_divergence(order: float) -> None:
    steps, epsilon = 2**20, 0.25
    shift = int(epsilon * steps)
    log_q = -1 / steps
    inner = np.arange(1, shift)
    outside = np.exp((order - 1) * epsilon) + np.exp(-order * epsilon)  # times P(z <= 0) = P(z >= 0)
    middle = np.exp(log_q * (order * inner + (1 - order) * (shift - inner))).sum()
    moment = outside / (1 + math.exp(log_q)) + math.tanh(0.5 / steps) * middle
    assert renyi_divergence(epsilon, order) == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)


def test_renyi_composition_is_the_least_over_the_orders() -> None:
    found, order = renyi_epsilon(0.1, 1000, 1e-5)
    assert found == pytest.approx(1000 * renyi_divergence(0.1, order) + math.log(1e5) / (order - 1))
    finer = [1000 * renyi_divergence(0.1, a) + math.log(1e5) / (a - 1) for a in np.linspace(1.01, 20, 5000)]
    assert found == pytest.approx(min(finer), rel=1e-5)


def test_advanced_composition_by_hand() -> None:
    # 100 * 0.1 * (e^0.1 - 1) / (e^0.1 + 1) + 0.1 * sqrt(200 * ln 100000)
    assert advanced_epsilon(0.1, 100, 1e-5) == pytest.approx(0.49958 + 4.79853, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(epsilon=st.floats(1e-3, 20), coordinates=st.integers(1, 10**6), rounds=st.integers(1, 1000), wide=st.booleans())
def test_the_least_of_the_bounds_is_given(epsilon: float, coordinates: int, rounds: int, wide: bool) -> None:
    cost = laplace_cost(LaplaceNoise(clip=epsilon / 2, scale=1.0), coordinates, rounds, 0.1 if wide else 1e-9)
    assert cost.epsilon_at_delta == min(cost.epsilon_total, cost.advanced, cost.renyi)
    kullback_leibler = epsilon + math.exp(-epsilon) - 1
    assert cost.epsilon_at_delta >= 0.999999 * coordinates * rounds * kullback_leibler
    assert cost.epsilon_coordinate <= cost.epsilon_round <= cost.epsilon_total


def test_what_makes_no_sense_is_refused() -> None:
    noise = LaplaceNoise(clip=1.0, scale=1.0)
    for coordinates, rounds, delta in ((0, 1, 0.1), (1, 0, 0.1), (1, 1, 0.0), (1, 1, 1.0), (1, 1, math.nan)):
        with pytest.raises(ParameterError):
            laplace_cost(noise, coordinates, rounds, delta)
    with pytest.raises(ParameterError, match="at least 1 client"):
        laplace_cost(noise, 1, 1).noise_of_mean(0)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [(0.0, "1 to 1"), (math.log(2), "2 to 1"), (10.0, "22,026 to 1"), (math.log(10) * 30, "10^30 to 1")],
)
def test_odds_in_words(epsilon: float, words: str) -> None:
    assert odds(epsilon) == words
