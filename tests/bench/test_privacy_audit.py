"""The audit of noisy sums stays below the claim, and rises above it where a defence is broken; attacks fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from bench.privacy_attacks import ATTACKS, CHANCE
from bench.privacy_audit import (
    CASES,
    EPSILON,
    Case,
    Noiseless,
    Unclipped,
    canary_bound,
    epsilon_at_least,
    p_value,
    variance_epsilon,
)
from protocols.recipes.private import Private

TASKS, CLIENTS = 28, 10
"""Fewer tasks cannot show more than the claim of 4, whatever is broken."""
BROKEN: dict[str, type[Private]] = {"counts": Noiseless, "colr": Unclipped}
"""The defence taken out, by case. The benchmark audits all cases; the others are bounded as colr is."""


def test_the_bound_of_pure_privacy_is_that_of_randomised_response() -> None:
    """All of r guesses right: the chance of a right one was at least .05^(1/r)."""
    for guesses in (10, 100, 5000):
        chance = 0.05 ** (1 / guesses)
        bound = math.log(chance / (1 - chance))
        assert epsilon_at_least(guesses, guesses, guesses, delta=0.0) == pytest.approx(bound)
    assert epsilon_at_least(100, 100, 50) == 0.0
    assert epsilon_at_least(100, 100, 0) == 0.0
    assert p_value(100, 100, 40, 1.0, 0.0) == pytest.approx(scipy.stats.binom.sf(39, 100, 1 / (1 + math.exp(-1))))


def test_the_bound_with_delta_by_hand() -> None:
    """Steinke et al., theorem 5.2: beta + 2 m delta max_i P[v > W >= v - i] / i, m = 6, r = 3, v = 2, epsilon 0."""
    beta = (3 + 1) / 8  # two or three of three
    alpha = max(3 / 8, (3 / 8 + 1 / 8) / 2)
    assert p_value(6, 3, 2, 0.0, 0.01) == pytest.approx(beta + 2 * 6 * 0.01 * alpha)
    assert epsilon_at_least(1000, 200, 190, delta=1e-3) < epsilon_at_least(1000, 200, 190, delta=0.0)


def test_randomised_response_seldom_exceeds_its_epsilon_and_is_measured_closely() -> None:
    epsilon, rng = 1.5, np.random.default_rng(3)
    chance = 1 / (1 + math.exp(-epsilon))
    bounds = [epsilon_at_least(500, 500, int(rng.binomial(500, chance)), 0.0) for _ in range(150)]
    assert np.mean(np.array(bounds) > epsilon) < 0.1
    assert epsilon_at_least(20_000, 20_000, int(rng.binomial(20_000, chance)), 0.0) > epsilon - 0.1


@pytest.mark.parametrize("name", BROKEN)
def test_canaries_show_less_than_the_claim_and_more_without_noise_or_bound(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    assert canary_bound(case, Private, TASKS, CLIENTS) <= EPSILON
    assert canary_bound(case, BROKEN[name], TASKS, CLIENTS) > EPSILON


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_missing_share_shows_in_the_variance(case: Case) -> None:
    epsilon, off = variance_epsilon(case, 8000, 0)
    assert abs(off) < 5
    assert epsilon <= EPSILON * 1.02
    epsilon, off = variance_epsilon(case, 8000, 1)
    assert off < -6
    assert epsilon > EPSILON


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_works_without_noise_and_fails_at_epsilon_1(name: str) -> None:
    rounds = 100 if name in ("rows", "touches") else 30
    assert ATTACKS[name](None, rounds) > 0.85
    assert ATTACKS[name](1.0, rounds) < CHANCE[name] + 0.08
