"""The accountant, against divergences that are computed from the distributions themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln, ive, logsumexp

from protocols.errors import ParameterError
from protocols.privacy.renyi import (
    ORDERS,
    epsilon_of,
    sampled_curve,
    skellam_curve,
    smallest_multiplier,
)

CURVE = skellam_curve((40.0, 10.0), 900.0)


def log_pmf(variance: float, reach: int) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(ive(np.abs(np.arange(-reach, reach + 1)), variance))


@pytest.mark.parametrize("variance", [20.0, 100.0, 2500.0])
@pytest.mark.parametrize("shift", [1, 3, 10])
def test_a_curve_bounds_the_exact_divergence_of_one_shifted_value(variance: float, shift: int) -> None:
    reach = int(40 * math.sqrt(variance)) + 2 * shift
    base = log_pmf(variance, reach)
    p, q = base[shift:], base[:-shift]
    seen = (p > -600) & (q > -600)
    bounds = skellam_curve((float(shift), float(shift)), variance)
    for order, bound in zip(ORDERS[:20], bounds, strict=False):
        for a, b in ((p, q), (q, p)):
            exact = float(logsumexp(order * a[seen] - (order - 1) * b[seen])) / (order - 1)
            assert exact <= bound * (1 + 1e-9)
            if order * shift <= variance / 10:
                assert exact > 0.95 * order * shift**2 / (2 * variance)  # the first term of the bound


def test_a_curve_by_hand() -> None:
    """a D2^2 / 2m + min(((2a - 1) D2^2 + 6 D1) / 4 m^2, 3 D1 / 2m), at order 2 and 3."""
    assert CURVE[:2].tolist() == pytest.approx(
        [2 * 100 / 1800 + (3 * 100 + 240) / (4 * 900**2), 3 * 100 / 1800 + (5 * 100 + 240) / (4 * 900**2)]
    )
    small = skellam_curve((40.0, 10.0), 5.0)
    assert small[0] == pytest.approx(2 * 100 / 10 + min((300 + 240) / 100, 120 / 10))
    assert small[-1] == pytest.approx(1024 * 100 / 10 + 120 / 10)
    for sensitive, variance in (((1.0, 1.0), 0.0), ((0.0, 1.0), 1.0), ((1.0, 0.0), 1.0), ((1.0, 1.0), math.nan)):
        with pytest.raises(ParameterError, match="must be positive"):
            skellam_curve(sensitive, variance)


def test_epsilon_by_hand_and_beside_the_gaussian() -> None:
    delta = 1e-5
    by_hand = min(
        value + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for value, order in zip(CURVE.tolist(), ORDERS, strict=True)
    )
    assert epsilon_of(CURVE, delta) == pytest.approx(by_hand)
    fine = skellam_curve((1e6, 1e3), 4e6)  # deviation twice the bound: nearly the Gaussian
    rho = 1 / 8
    assert epsilon_of(fine, delta) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rel=0.2)
    assert epsilon_of(fine, delta) <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) * 1.001
    assert epsilon_of(np.zeros(len(ORDERS)), delta) == 0.0
    assert epsilon_of(np.full(len(ORDERS), 1e-9), 0.9) == 0.0
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ParameterError, match="delta must be a probability"):
            epsilon_of(CURVE, wrong)


@given(st.floats(0.3, 20), st.integers(1, 300), st.floats(1e-9, 1e-3))
def test_the_multiplier_is_the_smallest(epsilon: float, sums: int, delta: float) -> None:
    kinds = [(100.0, 10.0), (4.0, 2.0)]

    def cost(z: float) -> float:
        curves = [skellam_curve((l1, l2), (z * l2) ** 2) for l1, l2 in kinds]
        return epsilon_of(sums * np.max(curves, axis=0), delta)

    z = smallest_multiplier(kinds, sums, epsilon, delta)
    assert cost(z) <= epsilon < cost(z / 1.00001)


@pytest.mark.parametrize(
    ("kinds", "sums", "epsilon"),
    [
        ([], 1, 1.0),
        ([(1.0, 1.0)], 0, 1.0),
        ([(1.0, 1.0)], 1, 0.0),
        ([(1.0, 1.0)], 1, math.inf),
        ([(1.0, 1.0)], 1, -2.0),
    ],
)
def test_budgets_without_a_multiplier(kinds: list[tuple[float, float]], sums: int, epsilon: float) -> None:
    with pytest.raises(ParameterError, match="a positive epsilon and at least one sum"):
        smallest_multiplier(kinds, sums, epsilon, 1e-6)


def test_an_epsilon_below_what_the_orders_can_show_is_refused() -> None:
    least = min(math.log1p(-1 / a) - (math.log(1e-9) + math.log(a)) / (a - 1) for a in ORDERS)
    with pytest.raises(ParameterError, match="no noise gives epsilon"):
        smallest_multiplier([(9.0, 3.0)], 1, least * 0.99, 1e-9)
    z = smallest_multiplier([(9.0, 3.0)], 1, least * 1.01, 1e-9)
    assert epsilon_of(skellam_curve((9.0, 3.0), (3 * z) ** 2), 1e-9) <= least * 1.01
    assert smallest_multiplier([(9.0, 3.0)], 1, least * 0.5, 1e-4) > z / 100  # at a larger delta there is one


@given(rate=st.floats(1e-4, 1), variance=st.floats(100, 1e5))
def test_sampling_never_costs_more_and_less_at_a_lower_rate(rate: float, variance: float) -> None:
    curve = skellam_curve((40.0, 10.0), variance)
    found = sampled_curve(curve, rate)
    assert (found <= curve).all()
    assert (sampled_curve(curve, rate / 2) <= found + 1e-12).all()
    assert (found >= 0).all()


def test_sampling_by_hand() -> None:
    """At order 2: ln(1 - q^2 + q^2 e^R(2)), which is exact."""
    rate = 0.1
    assert sampled_curve(CURVE, rate)[0] == pytest.approx(math.log(1 - rate**2 + rate**2 * math.exp(CURVE[0])))
    third = (1 - rate) ** 2 * (1 + 2 * rate) + 3 * rate**2 * (1 - rate) * math.exp(CURVE[0])
    third += rate**3 * math.exp(2 * CURVE[1])
    assert sampled_curve(CURVE, rate)[1] == pytest.approx(math.log(third) / 2)
    assert sampled_curve(CURVE, 1.0) is CURVE
    zeros = np.zeros(len(ORDERS))
    assert sampled_curve(zeros, 0.5) is zeros
    for wrong in (0.0, 1.01, -1.0):
        with pytest.raises(ParameterError, match="a sampling rate"):
            sampled_curve(CURVE, wrong)


def test_a_sampled_gaussian_divergence_is_bounded() -> None:
    """Against the exact divergence of a sampled Gaussian, at whole orders (Mironov, Talwar and Zhang 2019)."""
    rate, sigma = 0.05, 2.0
    curve = np.array([order / (2 * sigma**2) for order in ORDERS])
    found = sampled_curve(curve, rate)
    for place, order in enumerate(ORDERS[:30]):
        k = np.arange(order + 1)
        terms = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1) + k * math.log(rate)
        terms += (order - k) * math.log1p(-rate) + (k * k - k) / (2 * sigma**2)
        assert found[place] == pytest.approx(float(logsumexp(terms)) / (order - 1), rel=1e-9)
