"""The accountant of noisy sums, against the distributions themselves and `dp-accounting`; the noise of all shares."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import norm_of
from protocols.messages.privacy import default_delta, holds_against
from protocols.privacy.noise import (
    MAX_VARIANCE,
    ORDERS,
    NoiseTerms,
    SumNoise,
    bound_in_steps,
    epsilon_of,
    largest_skellam,
    longest_norm,
    round_within,
    skellam,
    skellam_curve,
    skellam_table,
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
    kinds = ((100.0, 10.0), (4.0, 2.0))

    def cost(z: float) -> float:
        curves = [skellam_curve((l1, l2), (z * l2) ** 2) for l1, l2 in kinds]
        return epsilon_of(sums * np.max(curves, axis=0), delta)

    z = smallest_multiplier(kinds, sums, epsilon, delta)
    assert cost(z) <= epsilon < cost(z / 1.00001)


def test_budgets_without_a_multiplier() -> None:
    one = ((1.0, 1.0),)
    for kinds, sums, epsilon in (((), 1, 1.0), (one, 0, 1.0), (one, 1, 0.0), (one, 1, math.inf), (one, 1, -2.0)):
        with pytest.raises(ParameterError, match="a positive epsilon and at least one sum"):
            smallest_multiplier(kinds, sums, epsilon, 1e-6)


def test_an_epsilon_below_what_the_orders_can_show_is_refused() -> None:
    least = min(math.log1p(-1 / a) - (math.log(1e-9) + math.log(a)) / (a - 1) for a in ORDERS)
    with pytest.raises(ParameterError, match="no noise gives epsilon"):
        smallest_multiplier(((9.0, 3.0),), 1, least * 0.99, 1e-9)
    z = smallest_multiplier(((9.0, 3.0),), 1, least * 1.01, 1e-9)
    assert epsilon_of(skellam_curve((9.0, 3.0), (3 * z) ** 2), 1e-9) <= least * 1.01
    assert smallest_multiplier(((9.0, 3.0),), 1, least * 0.5, 1e-4) > z / 100  # at a larger delta there is one


# --- what a task states -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "delta"), [(0, 1e-5), (20, 1e-5), (35_000, 1e-5), (10**6, 10**-6.6)])
def test_delta_falls_faster_than_one_client_in_all(clients: int, delta: float) -> None:
    assert default_delta(clients) == pytest.approx(delta)
    assert default_delta(clients) < 1 / max(clients, 1)


def test_what_the_noise_holds_against_is_said_and_counts_are_rounded_down() -> None:
    assert "up to 2 of the 29 clients of a cohort and 1 of the 5 members" in holds_against("anyone", 29, 0.1, (5, 1))
    assert "up to 0 of the 9 clients of a cohort: masks" in holds_against("anyone", 9, 0.1, None)
    assert "no member, the key holder included, colludes with the server" in holds_against("members", 20, 0.1, None)


# --- against `dp-accounting`, whose privacy loss distribution gives the smallest epsilon there is; ours is above ------
# Its import takes more than a second: only the process that runs these tests pays for it.


def skellam_loss(shifts: tuple[int, ...], variance: float) -> Any:
    """The privacy loss of a vector of Skellam variables that is shifted by whole numbers, one for each value."""
    from dp_accounting.pld import privacy_loss_distribution

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
    found = scipy.stats.skellam.logpmf(places, variance / 2, variance / 2)
    assert np.isfinite(found).all()
    return [float(value) for value in found]


@pytest.mark.parametrize(
    ("shifts", "sums", "multiplier"),
    [((1,), 4, 6.0), ((10,), 1, 1.0), ((10,), 30, 8.0), ((60,), 4, 2.0), ((1,) * 16, 1, 3.0), ((1,) * 100, 4, 2.5)],
)
def test_epsilon_of_skellam_noise_is_just_above_exact(shifts: tuple[int, ...], sums: int, multiplier: float) -> None:
    delta = 1e-6
    l1, l2 = float(sum(shifts)), math.sqrt(sum(shift**2 for shift in shifts))
    variance = (multiplier * l2) ** 2
    exact = skellam_loss(shifts, variance).self_compose(sums).get_epsilon_for_delta(delta)
    assert exact < epsilon_of(sums * skellam_curve((l1, l2), variance), delta) < 1.15 * exact


@pytest.mark.parametrize(
    ("epsilon", "delta", "sums", "l1", "shifts"),
    [
        (4.0, 1e-6, 1, 100.0, (1,) * 100),
        (8.0, 1e-6, 20, 4096.0, (64,)),
        (1.0, 1e-6, 3, 4096.0, (8,) * 64),
        (16.0, 1e-5, 1, 4096.0, (64,)),
        (4.0, 1e-8, 100, 64.0, (64,)),
        (200.0, 1e-5, 1, 1.0, (1,)),
    ],
)
def test_whole_tasks_cost_no_more_than_their_epsilon(
    epsilon: float, delta: float, sums: int, l1: float, shifts: tuple[int, ...]
) -> None:
    """The exact loss of the planned noise, of the honest clients alone, in all sums of a task.

    l1: the bound that the noise is planned for; the contribution is `shifts`.
    """
    l2 = math.sqrt(sum(shift**2 for shift in shifts))
    multiplier = NoiseTerms.of(epsilon, delta, sums, 0.1, 100, 90).multiplier([(l1, l2)])
    exact = skellam_loss(shifts, (multiplier * l2) ** 2).self_compose(sums).get_epsilon_for_delta(delta)
    assert exact <= epsilon + 1e-2


# --- Renyi divergences of Skellam variables, summed term by term; the curve is above ----------------------------------

SOME_ORDERS = (2, 3, 4, 8, 16, 32, 64, 128, 256, 1024)


def exact_curve(variance: float, shift: int) -> NDArray[np.float64]:
    """Return the divergence of one variable that is shifted from itself, at `SOME_ORDERS`.

    Logarithms of the probabilities come from ratios of Bessel functions by backward recurrence: none underflows.
    """
    reach = int(40 * math.sqrt(variance) + 3 * SOME_ORDERS[-1] * shift + 500)
    half, ratio = np.zeros(reach + 1), 0.0
    for place in range(reach + 400, 0, -1):
        ratio = 1 / (2 * place / variance + ratio)
        if place <= reach:
            half[place] = math.log(ratio)
    half[0] = math.log(scipy.special.ive(0, variance))
    half = np.cumsum(half)
    places = np.arange(1 - reach, reach + 1 - shift)
    own, moved = half[np.abs(places)], half[np.abs(places + shift)]
    return np.array([scipy.special.logsumexp(order * moved + (1 - order) * own) / (order - 1) for order in SOME_ORDERS])


@pytest.mark.parametrize("shifts", [(1,), (2,), (5,), (10,), (64,)])
@pytest.mark.parametrize("variance", [0.01, 0.05, 0.3, 1.0, 3.0, 10.0, 100.0, 2000.0, 1e5])
def test_the_curve_is_above_the_exact_divergence_of_one_value(variance: float, shifts: tuple[int, ...]) -> None:
    check_above(variance, shifts)


@pytest.mark.parametrize(
    ("variance", "shifts"),
    [
        (0.3, (1,) * 100),
        (4.0, (1,) * 100),
        (100.0, (1,) * 4096),
        (100.0, (8,) * 64),
        (50.0, (3,) * 20 + (1,) * 300),
        (819.2, (64,)),
    ],
)
def test_the_curve_is_above_the_exact_divergence_of_vectors(variance: float, shifts: tuple[int, ...]) -> None:
    check_above(variance, shifts)


def check_above(variance: float, shifts: tuple[int, ...]) -> None:
    exact = sum(exact_curve(variance, shift) * shifts.count(shift) for shift in set(shifts))
    bound = skellam_curve((float(sum(shifts)), math.sqrt(sum(shift**2 for shift in shifts))), variance)
    assert (bound[[ORDERS.index(order) for order in SOME_ORDERS]] >= exact * (1 - 1e-9)).all()


NEAR = 2.0**-40
SHARES = (0.02, 0.37, 5.3, 64.0, 3060.3463)


def share_pmf(variance: float) -> NDArray[np.float64]:
    """Return the probabilities of -n .. n that the sampler's table gives, n the largest sample."""
    edges = [0, *skellam_table(variance), 2**127]
    sizes = [(after - before) / 2**127 for before, after in pairwise(edges)]
    return np.array([*(size / 2 for size in reversed(sizes[1:])), sizes[0], *(size / 2 for size in sizes[1:])])


def distance(pmf: NDArray[np.float64], variance: float) -> float:
    """Return the statistical distance from the symmetric Skellam variable, whose tail beyond `pmf` counts too."""
    places = np.arange(pmf.size) - pmf.size // 2
    exact = scipy.special.ive(np.abs(places), variance)
    return float(np.abs(pmf - exact).sum() + abs(1 - exact.sum())) / 2


@pytest.mark.parametrize("share", SHARES)
def test_the_sum_of_the_shares_is_as_planned_for_every_number_of_survivors(share: float) -> None:
    honest, cohort = 4, 12
    one = share_pmf(share)
    total = one
    for survivors in range(2, cohort + 1):
        total = np.convolve(total, one)
        if survivors < honest:
            continue
        assert distance(total, survivors * share) < NEAR
        assert distance(total, (survivors - 1) * share) > 0.003, "one share less is another distribution"
        assert distance(total, (survivors + 1) * share) > 0.003
        assert math.isclose(SumNoise(1.0, 1.0, share).deviation(survivors) ** 2, survivors * share)


@pytest.mark.parametrize("share", SHARES)
def test_samples_have_the_distribution_of_the_table(share: float) -> None:
    count = 300_000
    samples = skellam(count, share, np.random.default_rng(7).bytes)
    pmf = share_pmf(share)
    observed = np.bincount(samples + pmf.size // 2, minlength=pmf.size)
    kept = count * pmf > 20
    expected = np.append(count * pmf[kept], count * pmf[~kept].sum() + 1e-9)
    found = np.append(observed[kept], observed[~kept].sum())
    chi_square = ((found - expected) ** 2 / np.maximum(expected, 1)).sum()
    assert chi_square < scipy.stats.chi2.isf(1e-9, expected.size)
    wider = share_pmf(share * 1.05)  # of a sampler with 5 % more variance
    cut = (wider.size - pmf.size) // 2
    wrong = count * wider[cut : cut + pmf.size][kept]
    assert ((observed[kept] - wrong) ** 2 / wrong).sum() > chi_square


def test_tables_of_the_smallest_and_of_the_largest_share() -> None:
    assert skellam_table(1e-40) == ()  # it is 0 within 2^-127
    assert skellam(5, 1e-40, np.random.default_rng(1).bytes).tolist() == [0] * 5
    for variance in (0.0, -1.0, math.inf, math.nan, MAX_VARIANCE * 1.01):
        with pytest.raises(ParameterError, match="variance above 0 and up to"):
            skellam_table(variance)
    assert 13 * math.sqrt(1000) < largest_skellam(1000.0) < 14 * math.sqrt(1000)
    assert largest_skellam(MAX_VARIANCE) <= 2**15


@pytest.mark.parametrize("share", SHARES)
def test_a_sample_is_what_its_127_bits_say(share: float) -> None:
    """Words at and around every entry, with second words around the rest of it; others take no second word."""
    table = skellam_table(share)
    firsts = [min(max((entry >> 64) + by, 0), 2**63 - 1) for entry in table for by in (-1, 0, 0, 0, 1)]
    rests = [(entry + by) % 2**64 for entry in table for by in (0, -1, 0, 1, 0)]
    words = np.array([2 * first + place % 2 for place, first in enumerate(firsts)], np.uint64)
    ends = {(entry >> 64) % 2**20 for entry in table}
    asked = [first % 2**20 in ends for first in firsts]
    second = np.array([rest for rest, is_asked in zip(rests, asked, strict=True) if is_asked], np.uint64)
    read = BytesIO(words.tobytes() + second.tobytes()).read
    samples = skellam(words.size, share, read)
    assert read() == b""
    for place, (first, rest) in enumerate(zip(firsts, rests, strict=True)):
        value = (first << 64) + (rest if asked[place] else 0)
        size = sum(entry <= value for entry in table)
        assert samples[place] == (-size if place % 2 else size)


def test_delta_holds_the_distance_of_the_sampler() -> None:
    """Of all samples of a task: 2^-112 each, times 1 + e^epsilon."""
    terms = NoiseTerms(8.0, 1e-6, 3, 800)
    samples = 3 * 800 * 1_024_000
    spent = (1 + math.exp(8)) * samples * 2.0**-112
    exact = terms.with_exact_delta(1_024_000)
    assert exact.delta == 1e-6 - spent and 0 < spent < 1e-18
    small = replace(terms, delta=1000 * spent * 1.001).with_exact_delta(1_024_000)
    assert small.delta == pytest.approx(1000 * spent * 1.001 - spent, rel=1e-12)
    for wrong in (
        replace(terms, delta=1000 * spent * 0.999),
        replace(terms, epsilon=60.0),
        replace(terms, epsilon=1e3),
    ):
        with pytest.raises(ParameterError, match="cannot be drawn exactly enough for epsilon"):
            wrong.with_exact_delta(1_024_000)


@given(
    epsilon=st.floats(0.5, 16),
    sums=st.integers(1, 200),
    honest=st.integers(1, 5000),
    values=st.integers(1, 300_000),
)
def test_honest_shares_of_all_sums_cost_the_budget(epsilon: float, sums: int, honest: int, values: int) -> None:
    delta, bound = 1e-5, float(bound_in_steps(values))
    terms = NoiseTerms(epsilon, delta, sums, honest)
    kind = (min(math.sqrt(values) * bound, bound**2), bound)
    multiplier = terms.multiplier([kind, (4.0, 2.0)])
    try:
        noise = terms.noise(kind, multiplier)
    except ParameterError:
        assert (multiplier * bound) ** 2 / honest > MAX_VARIANCE
        return
    assert noise.share * honest == pytest.approx((multiplier * bound) ** 2)
    cost = epsilon_of(sums * noise.curve(honest), delta)
    assert cost <= epsilon * (1 + 1e-9)
    assert epsilon_of(
        sums * np.maximum(noise.curve(honest), terms.noise((4.0, 2.0), multiplier).curve(honest)), delta
    ) > (epsilon * 0.999)
    if honest > 1:
        assert epsilon_of(sums * noise.curve(honest - 1), delta) > cost


def test_noise_that_is_too_large_is_refused_with_what_to_change() -> None:
    terms = NoiseTerms(0.01, 1e-6, 100, 1)
    with pytest.raises(ParameterError, match="each of 1 clients .* raise epsilon or min_clients, or shrink the model"):
        terms.noise((1e4, 100.0), terms.multiplier([(1e4, 100.0)]))


# --- random rounding: the bound holds always, the mean is kept where there is room, and what is refused ---------------


@given(
    values=arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6)),
    bound=st.floats(20, 5000),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=100)
def test_the_bound_holds_and_zeros_stay(values: np.ndarray, bound: float, seed: int) -> None:
    steps, scale = round_within(values, bound, np.random.default_rng(seed).bytes)
    assert steps.dtype == np.int64
    assert int((steps**2).sum()) <= bound**2 * (1 + 1e-9)
    assert not steps[values == 0].any()
    assert 0 < scale <= 1
    assert (np.abs(steps - values * scale) < 1).all()
    fractions = int(np.count_nonzero(values != np.rint(values)))
    if norm_of(values) <= longest_norm(bound, fractions):
        assert scale == 1.0


@given(values=arrays(np.int64, 12, elements=st.integers(-50, 50)), seed=st.integers(0, 99))
def test_whole_numbers_within_the_bound_are_kept_and_need_no_room(values: np.ndarray, seed: int) -> None:
    bound = math.sqrt(int((values**2).sum()))
    steps, scale = round_within(values.astype(float), bound, np.random.default_rng(seed).bytes)
    assert np.array_equal(steps, values)
    assert scale == 1.0


def test_rounding_is_right_in_the_mean() -> None:
    """Without rounding again the mean is exact. Within a bound that is seldom passed it is as good as exact."""
    values, rng = np.array([0.25, -1.75, 3.5, 0.0, 7.999]), np.random.default_rng(4)
    found = np.array([round_within(values, 50.0, rng.bytes)[0] for _ in range(5_000)])
    assert np.abs(found.mean(axis=0) - values).max() < 5 * 0.5 / math.sqrt(len(found))
    assert set(found[:, 1]) == {-2, -1}


def test_the_scaled_vector_is_the_mean_of_a_vector_that_is_too_long() -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal(400)
    rounded = [round_within(values * 1e4, 200.0, rng.bytes) for _ in range(300)]
    scale = rounded[0][1]
    assert scale * 1e4 * norm_of(values) == pytest.approx(longest_norm(200.0, 400))
    mean = np.mean([steps for steps, _ in rounded], axis=0)
    along = float(mean @ values) / norm_of(values) / (scale * 1e4 * norm_of(values))
    assert 0.98 < along <= 1.001


def test_a_rounding_beyond_the_bound_is_done_again() -> None:
    asked: list[int] = []
    up, down = bytes(8), b"\xff" * 8  # of a draw of 0 a fraction is rounded up, of one near 1 down

    def random(count: int) -> bytes:
        asked.append(count)
        return (up if len(asked) < 4 else down) * (count // 8)

    steps, scale = round_within(np.full(4, 0.5), 1.9, random)
    assert asked == [32] * 4
    assert steps.tolist() == [0] * 4
    assert scale < 1
    assert round_within(np.zeros(3), 5.0, random)[0].tolist() == [0] * 3


def test_a_source_that_always_rounds_up_ends() -> None:
    with pytest.raises(ParameterError, match="4 values were not rounded within a norm of 1.9 steps in 128 tries"):
        round_within(np.full(4, 0.5), 1.9, bytes)


def test_what_cannot_be_rounded() -> None:
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(ParameterError, match="not finite"):
            round_within(np.array([1.0, wrong]), 64.0, os.urandom)
    assert longest_norm(5.0, 0) == 5.0
    assert longest_norm(1.0, 100) == -1.0
    with pytest.raises(ParameterError, match="100 values cannot be rounded within a norm of 1 steps"):
        round_within(np.full(100, 0.5), 1.0, os.urandom)
