"""The accountant of noisy sums: against the distributions themselves, by hand, and against `dp-accounting`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocols.errors import ParameterError
from protocols.messages.privacy import default_delta, holds_against
from protocols.privacy.renyi import (
    ORDERS,
    epsilon_of,
    sampled_curve,
    skellam_curve,
    smallest_multiplier,
)

CURVE = skellam_curve((40.0, 10.0), 900.0)


def test_a_curve_of_little_noise_by_hand() -> None:
    """a D2^2 / 2m + min(((2a - 1) D2^2 + 6 D1) / 4 m^2, 3 D1 / 2m), at order 2 and 1024; others are in privacy.json."""
    small = skellam_curve((40.0, 10.0), 5.0)
    assert small[0] == pytest.approx(2 * 100 / 10 + min((300 + 240) / 100, 120 / 10))
    assert small[-1] == pytest.approx(1024 * 100 / 10 + 120 / 10)
    for sensitive, variance in (((1.0, 1.0), 0.0), ((0.0, 1.0), 1.0), ((1.0, 0.0), 1.0), ((1.0, 1.0), math.nan)):
        with pytest.raises(ParameterError, match="must be positive"):
            skellam_curve(sensitive, variance)


def test_epsilon_beside_the_gaussian() -> None:
    delta = 1e-5
    fine = skellam_curve((1e6, 1e3), 4e6)  # deviation twice the bound: nearly the Gaussian
    rho = 1 / 8
    assert epsilon_of(fine, delta) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rel=0.2)
    assert epsilon_of(fine, delta) <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) * 1.001
    assert epsilon_of(np.zeros(len(ORDERS)), delta) == 0.0
    assert epsilon_of(np.full(len(ORDERS), 1e-9), 0.9) == 0.0
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ParameterError, match="delta must be a probability"):
            epsilon_of(CURVE, wrong)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 20), st.integers(1, 300), st.floats(1e-9, 1e-3))
def test_the_multiplier_is_the_smallest(epsilon: float, sums: int, delta: float) -> None:
    kinds = [(100.0, 10.0), (4.0, 2.0)]

    def cost(z: float) -> float:
        curves = [skellam_curve((l1, l2), (z * l2) ** 2) for l1, l2 in kinds]
        return epsilon_of(sums * np.max(curves, axis=0), delta)

    z = smallest_multiplier(kinds, sums, epsilon, delta)
    assert cost(z) <= epsilon < cost(z / 1.00001)


def test_budgets_without_a_multiplier() -> None:
    one = [(1.0, 1.0)]
    for kinds, sums, epsilon in (([], 1, 1.0), (one, 0, 1.0), (one, 1, 0.0), (one, 1, math.inf), (one, 1, -2.0)):
        with pytest.raises(ParameterError, match="a positive epsilon and at least one sum"):
            smallest_multiplier(kinds, sums, epsilon, 1e-6)


def test_an_epsilon_below_what_the_orders_can_show_is_refused() -> None:
    least = min(math.log1p(-1 / a) - (math.log(1e-9) + math.log(a)) / (a - 1) for a in ORDERS)
    with pytest.raises(ParameterError, match="no noise gives epsilon"):
        smallest_multiplier([(9.0, 3.0)], 1, least * 0.99, 1e-9)
    z = smallest_multiplier([(9.0, 3.0)], 1, least * 1.01, 1e-9)
    assert epsilon_of(skellam_curve((9.0, 3.0), (3 * z) ** 2), 1e-9) <= least * 1.01
    assert smallest_multiplier([(9.0, 3.0)], 1, least * 0.5, 1e-4) > z / 100  # at a larger delta there is one


@settings(max_examples=12, deadline=None)
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


# --- what a task states -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "delta"), [(0, 1e-5), (20, 1e-5), (35_000, 1e-5), (10**6, 10**-6.6)])
def test_delta_falls_faster_than_one_client_in_all(clients: int, delta: float) -> None:
    assert default_delta(clients) == pytest.approx(delta)
    assert default_delta(clients) < 1 / max(clients, 1)


def test_the_counts_of_those_who_may_collude_are_rounded_down() -> None:
    assert "up to 2 of the 29 clients of a cohort and 1 of the 5 members" in holds_against("anyone", 29, 0.1, (5, 1))
    assert "up to 0 of the 9 clients of a cohort: masks" in holds_against("anyone", 9, 0.1, None)


def test_where_members_open_sums_the_server_must_not_have_one_of_them() -> None:
    assert "no member, the key holder included, colludes with the server" in holds_against("members", 20, 0.1, None)


# --- against `dp-accounting`, whose privacy loss distribution gives the smallest epsilon there is; ours is above ------


Loss = privacy_loss_distribution.PrivacyLossDistribution


def skellam_loss(shifts: tuple[int, ...], variance: float) -> Loss:
    """The privacy loss of a vector of Skellam variables that is shifted by whole numbers, one for each value."""
    reach = math.ceil(12 * math.sqrt(variance)) + 40
    found = None
    for shift in sorted(set(shifts)):
        places = np.arange(-reach, reach + shift + 1)
        own, moved = (
            dict(zip(places.tolist(), finite_logpmf(places - by, variance), strict=True)) for by in (0, shift)
        )
        one = privacy_loss_distribution.from_two_probability_mass_functions(
            own, moved, value_discretization_interval=1e-3 * shift / math.sqrt(variance), symmetric=True
        ).self_compose(shifts.count(shift))
        found = one if found is None else found.compose(one)
    assert found is not None
    return found


def finite_logpmf(places: np.ndarray, variance: float) -> list[float]:
    found = stats.skellam.logpmf(places, variance / 2, variance / 2)
    assert np.isfinite(found).all()
    return [float(value) for value in found]


@pytest.mark.parametrize(
    ("shifts", "sums", "multiplier"),
    [
        ((1,), 4, 6.0),
        ((10,), 1, 1.0),
        ((10,), 30, 8.0),
        ((60,), 4, 2.0),
        ((1,) * 16, 1, 3.0),
        ((1,) * 100, 4, 2.5),
    ],
)
def test_our_epsilon_of_skellam_noise_is_above_the_exact_one_and_near(
    shifts: tuple[int, ...], sums: int, multiplier: float
) -> None:
    delta = 1e-6
    l1, l2 = float(sum(shifts)), math.sqrt(sum(shift**2 for shift in shifts))
    variance = (multiplier * l2) ** 2
    exact = skellam_loss(shifts, variance).self_compose(sums).get_epsilon_for_delta(delta)
    ours = epsilon_of(sums * skellam_curve((l1, l2), variance), delta)
    assert exact < ours < 1.15 * exact


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_noise_for_an_epsilon_keeps_it_exactly(epsilon: float) -> None:
    multiplier = smallest_multiplier([(20.0, 20.0)], 3, epsilon, 1e-6)
    exact = skellam_loss((20,), (20 * multiplier) ** 2).self_compose(3).get_epsilon_for_delta(1e-6)
    assert epsilon / 1.15 < exact < epsilon


@pytest.mark.parametrize(("multiplier", "rate", "rounds"), [(1.0, 0.01, 1000), (0.8, 0.1, 20), (4.0, 0.5, 100)])
def test_our_curve_of_sampled_sums_is_theirs_of_gaussian_noise(multiplier: float, rate: float, rounds: int) -> None:
    """With steps so fine that Skellam noise is Gaussian."""
    l2 = 1e6
    curve = sampled_curve(skellam_curve((l2, l2), (multiplier * l2) ** 2), rate)
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), rounds)
    theirs = RdpAccountant(orders=[float(order) for order in ORDERS]).compose(event)
    dense = np.array(ORDERS) <= 64  # beyond, ours knows fewer orders than the theorem adds up
    found = np.array(theirs._rdp)[dense]
    assert np.allclose(rounds * curve[dense], found, rtol=1e-4)
    ours = epsilon_of(rounds * curve, 1e-6)
    assert theirs.get_epsilon(1e-6) == pytest.approx(ours, rel=1e-3)
