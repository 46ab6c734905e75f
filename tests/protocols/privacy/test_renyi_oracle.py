"""The accountant of noisy sums against `dp-accounting`, which computes privacy loss distributions and Renyi orders.

The distribution of the privacy loss gives the smallest epsilon there is; it is built from the exact probabilities of
Skellam noise. Ours must be above, and not far.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from protocols.privacy.renyi import ORDERS, epsilon_of, sampled_curve, skellam_curve, smallest_multiplier

Loss = privacy_loss_distribution.PrivacyLossDistribution


def skellam_loss(shifts: tuple[int, ...], variance: float) -> Loss:
    """The privacy loss of a vector of Skellam variables that is shifted by whole numbers, one for each value."""
    reach = math.ceil(12 * math.sqrt(variance)) + 40
    found = None
    for shift in sorted(set(shifts)):
        places = np.arange(-reach, reach + shift + 1)
        own, moved = (dict(zip(places.tolist(), logpmf(places - by, variance), strict=True)) for by in (0, shift))
        one = privacy_loss_distribution.from_two_probability_mass_functions(
            own, moved, value_discretization_interval=1e-3 * shift / math.sqrt(variance), symmetric=True
        ).self_compose(shifts.count(shift))
        found = one if found is None else found.compose(one)
    assert found is not None
    return found


def logpmf(places: np.ndarray, variance: float) -> list[float]:
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
@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_our_epsilon_of_skellam_noise_is_above_the_exact_one_and_near(
    shifts: tuple[int, ...], sums: int, multiplier: float, delta: float
) -> None:
    l1, l2 = float(sum(shifts)), math.sqrt(sum(shift**2 for shift in shifts))
    variance = (multiplier * l2) ** 2
    exact = skellam_loss(shifts, variance).self_compose(sums).get_epsilon_for_delta(delta)
    ours = epsilon_of(sums * skellam_curve((l1, l2), variance), delta)
    assert exact < ours < 1.15 * exact


def test_the_bound_is_looser_where_the_noise_is_a_few_steps() -> None:
    """The tails of Skellam noise are heavier than Gaussian ones, which the theorem does not count in its favour."""
    exact = skellam_loss((1,), 16.0).get_epsilon_for_delta(1e-6)
    assert 1.2 * exact < epsilon_of(skellam_curve((1.0, 1.0), 16.0), 1e-6) < 1.3 * exact


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
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
