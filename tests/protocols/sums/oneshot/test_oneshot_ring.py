"""The ring of one-shot sums, and the sampler of its secrets and errors."""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.crypto.domain import domain_tag
from protocols.errors import ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.sums.oneshot.parameters import MOST_CLIENTS, SIGMA
from protocols.sums.oneshot.plan import make_plan
from protocols.sums.oneshot.polynomials import (
    PRIME_BITS,
    Ring,
    add_products,
    bound_of_sum,
    canonical,
    choose_ring,
    primes_below,
    public_polynomials,
    reduced,
)
from protocols.sums.oneshot.sampler import LARGEST, gaussian, gaussian_table, uniform_residues
from protocols.sums.ring_security import DEGREES, LOG_Q_CAPS
from tests.protocols.sums.oneshot.rounds import counting_random

EXTREMES = 2**45


def schoolbook(left: list[int], right: list[int], prime: int) -> list[int]:
    """left * right modulo X^N + 1 and the prime, by the definition."""
    degree, product = len(left), [0] * len(left)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[(i + j) % degree] += a * b if i + j < degree else -a * b
    return [value % prime for value in product]


def by_big_integers(left: list[int], right: list[int], prime: int) -> list[int]:
    """The same for long polynomials: Kronecker substitution, one product of big integers."""
    size, degree = 20, len(left)
    half = 1 << 8 * size - 1

    def joined(values: list[int]) -> int:
        return int.from_bytes(b"".join((value + half).to_bytes(size, "little") for value in values), "little")

    offset = joined([0] * degree)
    whole = (joined(left) - offset) * (joined(right) - offset) + joined([0] * 2 * degree)
    body = whole.to_bytes(2 * degree * size + 1, "little")
    digits = [int.from_bytes(body[size * k : size * (k + 1)], "little") - half for k in range(2 * degree)]
    return [(digits[k] - digits[k + degree]) % prime for k in range(degree)]


def multiplied(public: np.ndarray, secret: np.ndarray, primes: tuple[int, ...], length: int) -> list[list[int]]:
    target = np.zeros((len(primes), length))
    add_products(target, public, secret, primes)
    assert np.abs(target).max() < 2**49
    return [canonical(plane, prime).tolist() for plane, prime in zip(target, primes, strict=True)]


@given(st.integers(0, 2**32), st.sampled_from([58, 2047, 2049, 10**6, EXTREMES]))
def test_products_equal_the_schoolbook_ones(seed: int, largest: int) -> None:
    rng, degree, primes = np.random.default_rng(seed), 16, primes_below(2048, 2)
    public = np.stack([rng.integers(0, prime, (2, degree)) for prime in primes]).astype(np.uint32)
    secret = rng.integers(-largest, largest + 1, degree)
    got = multiplied(public, secret, primes, degree + 5)
    for number, prime in enumerate(primes):
        polynomials = [schoolbook(one.tolist(), secret.tolist(), prime) for one in public[number]]
        assert got[number] == (polynomials[0] + polynomials[1])[: degree + 5]


@pytest.mark.parametrize("degree", DEGREES)
def test_products_of_the_largest_factors_are_exact(degree: int) -> None:
    """Residues around half of the prime and limbs of full size: where rounding errors of the transforms are largest."""
    (prime,) = primes_below(degree, 1)
    rng = np.random.default_rng(degree)
    for size, public in (
        (2**11, np.full(degree, prime // 2)),
        (58, np.where(rng.integers(0, 2, degree), prime // 2, prime // 2 + 1)),
        (EXTREMES, rng.integers(0, prime, degree)),
    ):
        for secret in (np.full(degree, size), np.where(rng.integers(0, 2, degree), size, -size)):
            centred = [int(a) - prime if a > prime // 2 else int(a) for a in public]
            got = multiplied(public.astype(np.uint32)[None, None], secret, (prime,), degree)
            assert got[0] == by_big_integers(centred, secret.tolist(), prime)


def test_both_references_agree() -> None:
    rng = np.random.default_rng(3)
    left, right = rng.integers(-(2**31), 2**31, 32).tolist(), rng.integers(-(2**20), 2**20, 32).tolist()
    assert schoolbook(left, right, 97) == by_big_integers(left, right, 97)


@given(st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=20), st.sampled_from(primes_below(8192, 6)))
def test_reductions_are_exact(values: list[int], prime: int) -> None:
    array = np.array(values, np.float64)
    assert canonical(array, prime).tolist() == [value % prime for value in values]
    assert (np.abs(reduced(array, prime)) <= prime / 2 + 2).all()


def test_public_polynomials_depend_on_the_round_and_are_uniform_residues() -> None:
    primes = primes_below(2048, 2)
    made = public_polynomials(bytes(32), 2048, primes, 3)
    assert made.shape == (2, 3, 2048)
    assert all(int(plane.max()) < prime for plane, prime in zip(made, primes, strict=True))
    assert (made == public_polynomials(bytes(32), 2048, primes, 3)).all()
    assert (made[:, :2] == public_polynomials(bytes(32), 2048, primes, 2)).all()
    assert (made != public_polynomials(bytes(31) + b"\1", 2048, primes, 3)).mean() > 0.99
    assert abs(made.mean() / 2**31 - 1) < 0.02


def test_words_beyond_the_prime_are_passed_over() -> None:
    """A prime of half the range takes every second word; the stream is read until there are enough."""
    prime = 2**31 - 1
    made = public_polynomials(bytes(32), 16, (prime,), 40).reshape(-1)
    stream = hashlib.shake_128(domain_tag("oneshot polynomials", bytes(32), 0)).digest(4 * 4096)
    words = [int.from_bytes(stream[at : at + 4], "little") for at in range(0, len(stream), 4)]
    assert made.tolist() == [word for word in words if word < prime][:640]


@pytest.mark.parametrize("degree", DEGREES)
def test_primes_are_primes_of_the_right_form(degree: int) -> None:
    primes = primes_below(degree, 6)
    assert len(set(primes)) == 6
    for prime in primes:
        assert 2**31 < prime < 2**32
        assert prime % (2 * degree) == 1
        assert pow(3, prime - 1, prime) == pow(2, prime - 1, prime) == 1


@given(st.integers(16, 52), st.integers(1, 10**6), st.integers(3, MOST_CLIENTS), st.integers(3, 16))
def test_the_chosen_ring_is_secure_fits_and_is_smallest(bits: int, values: int, clients: int, committee: int) -> None:
    ring = choose_ring(bits, values, clients, 16, committee)
    assert ring.modulus.bit_length() <= LOG_Q_CAPS["ternary"][ring.degree]
    assert ring.error_room >= bound_of_sum(clients)
    assert 32 * len(ring.primes) - ring.message_bits <= 64  # unpacking reads the errors as one word
    assert (ring.polynomials(values) - 1) * ring.degree < ring.coefficients(values)
    assert ring.check_coefficients * ring.message_bits >= 64

    def size(one: Ring) -> int:
        return one.body_bytes(values) + committee * (4 * one.degree + 16)

    for degree in DEGREES:
        for count in range(1, LOG_Q_CAPS["ternary"][degree] // PRIME_BITS + 1):
            for per in range(1, 13):
                other = Ring(degree, primes_below(degree, count), per, bits)
                if other.error_room >= bound_of_sum(clients):
                    assert size(ring) <= size(other)


def test_the_plan_of_the_item_matrix() -> None:
    """The target: 4.2 bytes a value for 1,000 clients and sums of 28 bits, shares below 100,000 bytes."""
    layout = VectorLayout((Block("b", (Segment("values", 237_184, 0.1),)),), sum_class=TRAINED)
    plan = make_plan({}, layout, 1000)
    assert (plan.ring.degree, len(plan.ring.primes), plan.ring.per) == (4096, 3, 3)
    facts = plan.describe()
    assert facts["bytes_per_value"] < 4.001
    assert facts["ticket_bytes"] == 82_096
    assert facts["upload_bytes"] == plan.body_bytes + plan.ticket_bytes == 1_030_852


@pytest.mark.parametrize(
    ("parameters", "clients", "text"),
    [
        ({"bits": 15}, 10, "bits"),
        ({"committee": 2}, 10, "committee"),
        ({"committee": 3, "corrupt": 3}, 10, "at most 2 may be corrupt"),
        ({}, 2, "at least 3"),
        ({"bits": 16}, 100_000, "at most 16383 contributions fit, or 19 bits fit"),
        ({}, MOST_CLIENTS + 1, "over 1000000 contributions"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(parameters: dict[str, int], clients: int, text: str) -> None:
    layout = VectorLayout((Block("b", (Segment("values", 10, 1.0),)),), sum_class=TRAINED)
    with pytest.raises(ParameterError, match=text):
        make_plan(parameters, layout, clients)


def test_the_threshold_makes_any_two_sides_share_an_honest_member() -> None:
    layout = VectorLayout((Block("b", (Segment("values", 10, 1.0),)),), sum_class=TRAINED)
    for committee in range(3, 17):
        for corrupt in range(committee):
            plan = make_plan({"committee": committee, "corrupt": corrupt}, layout, 10)
            assert 2 * plan.threshold > committee + corrupt
            assert 2 * (plan.threshold - 1) <= committee + corrupt
            assert corrupt < plan.threshold <= committee


# --- sampler ----------------------------------------------------------------------------------------------------------


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def test_the_table_is_the_cumulative_distribution() -> None:
    weights = [math.exp(-(x**2) / (2 * SIGMA**2)) for x in range(200)]
    whole = weights[0] + 2 * sum(weights[1:])
    reached = weights[0]
    for k, entry in enumerate(gaussian_table()):
        reached += 2 * weights[k] if k else 0.0
        assert entry / 2**63 == pytest.approx(reached / whole, abs=1e-14)
    assert LARGEST == len(gaussian_table()) == 58
    assert list(gaussian_table()) == sorted(set(gaussian_table()))


def test_words_at_the_edges_of_the_table() -> None:
    table = gaussian_table()
    cases = [(0, 0), (table[0] - 1, 0), (table[0], 1), (table[5] - 1, 5), (table[5], 6), (2**63 - 1, LARGEST)]
    drawn = words(*[2 * word + sign for word, _ in cases for sign in (0, 1)])
    samples = gaussian(2 * len(cases), lambda count: drawn[:count])
    assert samples.tolist() == [sign * size for _, size in cases for sign in (1, -1)]


def test_samples_have_the_distribution() -> None:
    count = 400_000
    samples = gaussian(count, counting_random(5))
    assert samples.dtype == np.int64
    weights = np.exp(-(np.arange(-30, 31) ** 2) / (2 * SIGMA**2))
    expected = count * weights / weights.sum()
    observed = np.array([(samples == x).sum() for x in range(-30, 31)])
    kept = expected > 20
    chi_square = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi_square < 2 * kept.sum()
    assert abs(samples.std() - SIGMA) < 0.05


def test_the_source_gives_exactly_eight_bytes_a_sample() -> None:
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    assert gaussian(20_000, random).size == 20_000
    assert asked == [160_000]


def test_residues_are_drawn_again_beyond_the_prime() -> None:
    prime = 2**31 + 11
    drawn = [(prime - 1, prime, 5, 2**32 - 1), (prime, 7), (9,)]
    source = iter(b"".join(word.to_bytes(4, "little") for word in row) for row in drawn)
    assert uniform_residues(4, prime, lambda _: next(source)).tolist() == [prime - 1, 9, 5, 7]
