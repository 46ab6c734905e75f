"""The ring of one-shot sums, the sampler of secrets and errors, shares, packing, and what the server hands out."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.codec import LONGEST_ID
from protocols.crypto.keys import domain_tag
from protocols.errors import CodecError, ParameterError, ThresholdError
from protocols.layout import Segment
from protocols.sums.oneshot.committee import (
    join_confirmations,
    join_keys,
    split_confirmations,
    split_keys,
    split_statements,
)
from protocols.sums.oneshot.mechanism import check_noise, packed_residues
from protocols.sums.oneshot.member import candidates, split
from protocols.sums.oneshot.plan import MOST_CLIENTS, make_plan
from protocols.sums.oneshot.polynomials import (
    PRIME_BITS,
    SIGMA,
    Ring,
    add_products,
    bound_of_sum,
    canonical,
    choose_ring,
    gaussian,
    gaussian_table,
    primes_below,
    public_polynomials,
    uniform_residues,
)
from protocols.sums.oneshot.server import kept_from_opening
from protocols.sums.oneshot.wire import LONGEST_KEY
from protocols.sums.ring_security import DEGREES, LOG_Q_CAPS
from tests.protocols.sums.conformance import one_block
from tests.protocols.sums.oneshot.rounds import Round, counting_random, small_plan, unpacked_sum

EXTREMES = 2**45


def by_big_integers(left: list[int], right: list[int], prime: int) -> list[int]:
    """left * right modulo X^N + 1 and the prime: Kronecker substitution, one product of big integers."""
    size, degree = 20, len(left)
    half = 1 << 8 * size - 1

    def joined(values: list[int]) -> int:
        return int.from_bytes(b"".join((value + half).to_bytes(size, "little") for value in values), "little")

    offset = joined([0] * degree)
    whole = (joined(left) - offset) * (joined(right) - offset) + joined([0] * 2 * degree)
    body = whole.to_bytes(2 * degree * size + 1, "little")
    digits = [int.from_bytes(body[size * k : size * (k + 1)], "little") - half for k in range(2 * degree)]
    return [(digits[k] - digits[k + degree]) % prime for k in range(degree)]


def test_products_of_the_largest_factors_are_exact() -> None:
    """Residues around half of the prime and limbs of full size: where rounding errors of the transforms are largest.

    Several polynomials, primes and secrets, and a last polynomial that is cut: oneshot_ring.json.
    """
    for degree in DEGREES:
        (prime,) = primes_below(degree, 1)
        rng = np.random.default_rng(degree)
        for size, public in (
            (2**11, np.full(degree, prime // 2)),
            (58, np.where(rng.integers(0, 2, degree), prime // 2, prime // 2 + 1)),
            (EXTREMES, rng.integers(0, prime, degree)),
        ):
            secret = np.where(rng.integers(0, 2, degree), size, -size) if size == 58 else np.full(degree, size)
            centred = [int(a) - prime if a > prime // 2 else int(a) for a in public]
            target = np.zeros((1, degree))
            add_products(target, public.astype(np.uint32)[None, None], secret, (prime,))
            assert np.abs(target).max() < 2**49
            assert canonical(target[0], prime).tolist() == by_big_integers(centred, secret.tolist(), prime)


def test_public_polynomials_are_the_words_below_the_prime() -> None:
    """A prime of half the range takes every second word; the stream is read until there are enough."""
    primes = primes_below(2048, 2)
    made = public_polynomials(bytes(32), 2048, primes, 3)
    assert (made[:, :2] == public_polynomials(bytes(32), 2048, primes, 2)).all()
    assert (made != public_polynomials(bytes(31) + b"\1", 2048, primes, 3)).mean() > 0.99
    prime = 2**31 - 1
    halved = public_polynomials(bytes(32), 16, (prime,), 40).reshape(-1)
    stream = hashlib.shake_128(domain_tag("oneshot polynomials", bytes(32), 0)).digest(4 * 4096)
    words = [int.from_bytes(stream[at : at + 4], "little") for at in range(0, len(stream), 4)]
    assert halved.tolist() == [word for word in words if word < prime][:640]


@given(st.integers(16, 52), st.integers(1, 10**6), st.integers(3, MOST_CLIENTS), st.integers(3, 16))
@settings(max_examples=30, deadline=None)
def test_the_chosen_ring_is_secure_fits_and_is_smallest(bits: int, values: int, clients: int, committee: int) -> None:
    ring = choose_ring(bits, values, clients, committee)
    assert ring.modulus.bit_length() <= LOG_Q_CAPS["ternary"][ring.degree]
    assert ring.error_room >= bound_of_sum(clients)
    assert 32 * len(ring.primes) - ring.message_bits <= 64  # unpacking reads the errors as one word
    assert (ring.polynomials(values) - 1) * ring.degree < ring.coefficients(values)
    assert ring.check_coefficients * ring.message_bits >= 64

    def size(one: Ring) -> int:
        return one.body_bytes(values) + committee * 4 * one.degree

    for degree in DEGREES:
        for count in range(1, LOG_Q_CAPS["ternary"][degree] // PRIME_BITS + 1):
            for per in range(1, 13):
                other = Ring(degree, primes_below(degree, count), per, bits)
                if other.error_room >= bound_of_sum(clients):
                    assert size(ring) <= size(other)


def test_the_plan_of_the_item_matrix() -> None:
    """The target: 4.2 bytes a value for 1,000 clients and sums of 28 bits, shares below 100,000 bytes."""
    plan = make_plan({}, one_block(Segment("values", 237_184, 0.1)), 1000)
    assert (plan.ring.degree, len(plan.ring.primes), plan.ring.per) == (4096, 3, 3)
    facts = plan.describe()
    assert facts["log2_q"] == sum(prime.bit_length() for prime in plan.ring.primes) == 96
    assert facts["bytes_per_value"] < 4.001
    assert facts["ticket_bytes"] == 87_536
    assert facts["upload_bytes"] == plan.body_bytes + plan.ticket_bytes == 1_036_292


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    layout = one_block(Segment("values", 10, 1.0))
    cases: tuple[tuple[dict[str, int], int, str], ...] = (
        ({"bits": 15}, 10, "bits"),
        ({"committee": 2}, 10, "committee"),
        ({"committee": 3, "corrupt": 3}, 10, "at most 2 may be corrupt"),
        ({}, 2, "at least 3"),
        ({"bits": 16}, 100_000, "at most 16383 contributions fit, or 19 bits fit"),
        ({}, MOST_CLIENTS + 1, "over 1000000 contributions"),
    )
    for parameters, clients, text in cases:
        with pytest.raises(ParameterError, match=text):
            make_plan(parameters, layout, clients)


def test_the_threshold_makes_any_two_sides_share_an_honest_member() -> None:
    layout = one_block(Segment("values", 10, 1.0))
    for committee in range(3, 17):
        for corrupt in range(committee):
            plan = make_plan({"committee": committee, "corrupt": corrupt}, layout, 10)
            assert 2 * plan.threshold > committee + corrupt
            assert 2 * (plan.threshold - 1) <= committee + corrupt
            assert corrupt < plan.threshold <= committee


def test_the_table_is_the_cumulative_distribution() -> None:
    weights = [math.exp(-(x**2) / (2 * SIGMA**2)) for x in range(200)]
    whole = weights[0] + 2 * sum(weights[1:])
    reached = weights[0]
    for k, entry in enumerate(gaussian_table()):
        reached += 2 * weights[k] if k else 0.0
        assert entry / 2**63 == pytest.approx(reached / whole, abs=1e-14)
    assert len(gaussian_table()) == 58
    assert list(gaussian_table()) == sorted(set(gaussian_table()))


def test_residues_are_drawn_again_beyond_the_prime() -> None:
    prime = 2**31 + 11
    drawn = [(prime - 1, prime, 5, 2**32 - 1), (prime, 7), (9,)]
    source = iter(b"".join(word.to_bytes(4, "little") for word in row) for row in drawn)
    assert uniform_residues(4, prime, lambda _: next(source)).tolist() == [prime - 1, 9, 5, 7]


(PRIME,) = primes_below(2048, 1)
SIZE, CLIENTS = 64, 20
Summed = tuple[np.ndarray, dict[int, np.ndarray]]


@pytest.fixture
def summed() -> Summed:
    """The sum of secrets of several clients, and the sums of their shares at 7 points, 3 of which are enough."""
    secrets = [gaussian(SIZE, os.urandom) for _ in range(CLIENTS)]
    shares = [split(secret, 3, range(1, 8), PRIME, os.urandom) for secret in secrets]
    sums = {point + 1: sum(one[point].astype(np.uint64) for one in shares) % PRIME for point in range(7)}
    return sum(secrets), {point: value.astype(np.uint32) for point, value in sums.items()}


def test_any_t_sums_of_shares_give_the_sum_of_secrets(summed: Summed) -> None:
    secret, shares = summed
    for points in ((1, 2, 3), (2, 5, 7), (7, 1, 4, 3), range(1, 8)):
        ((got, wrong),) = candidates({point: shares[point] for point in points}, 3, PRIME, CLIENTS)
        assert (got.tolist(), wrong) == (secret.tolist(), frozenset())
    with pytest.raises(ThresholdError):
        candidates({1: shares[1], 2: shares[2]}, 3, PRIME, CLIENTS)


def test_wrong_shares_are_named_and_too_many_give_nothing(summed: Summed) -> None:
    secret, shares = summed
    rng = np.random.default_rng(1)
    drawn = {point: rng.integers(0, PRIME, SIZE).astype(np.uint32) for point in range(1, 6)}
    one_coefficient = shares[4] ^ (np.arange(SIZE) == SIZE - 1).astype(np.uint32)
    for wrong in ({4: one_coefficient}, *({at: drawn[at] for at in points} for points in ([2, 5], [1, 2, 3, 4]))):
        ((got, named),) = candidates(shares | wrong, 3, PRIME, CLIENTS)
        assert (got.tolist(), named) == (secret.tolist(), frozenset(wrong))
    with pytest.raises(CodecError, match="too many of 7"):
        candidates(shares | drawn, 3, PRIME, CLIENTS)


def packed(ring: Ring, steps: np.ndarray, errors: np.ndarray) -> np.ndarray:
    return packed_residues(ring, steps, errors, np.zeros((len(ring.primes), ring.coefficients(steps.size))))


@given(st.integers(16, 52), st.integers(1, 60), st.integers(3, 10**6), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_sums_of_any_size_that_fits_come_back_exactly(bits: int, values: int, clients: int, seed: int) -> None:
    ring, rng = choose_ring(bits, values, clients, 5), np.random.default_rng(seed)
    most = 1 << bits - 1
    sums = rng.choice(np.array([-most, most - 1, 0, -1, 1, most // 3]), values)
    noise = rng.integers(-6, 7, ring.coefficients(values))
    # Single contributions may be far larger than the sums: what they carry over cancels.
    large = rng.integers(-(2**53), 2**53, values, endpoint=True)
    errors = gaussian(noise.size, counting_random(1))
    parts = [packed(ring, large, errors), packed(ring, sums - large, noise - errors)]
    for steps in (large, sums - large):
        assert np.abs(steps).max() <= 2**53 + 2**52
    total = np.stack(
        [(a.astype(np.uint64) + b) % np.uint64(p) for a, b, p in zip(*parts, ring.primes, strict=True)]
    ).astype(np.uint32)
    assert unpacked_sum(ring, total, values, clients).tolist() == sums.tolist()


def test_the_largest_errors_decode() -> None:
    """Larger ones, which no honest sum has, are refused."""
    ring, errors, bound = Ring(4096, primes_below(4096, 3), 3, 28), np.zeros(5000, np.int64), bound_of_sum(1000)
    errors[:2] = bound, -bound
    steps = np.full(3 * 4999, -(2**27))
    assert (unpacked_sum(ring, packed(ring, steps, errors), steps.size, 1000) == -(2**27)).all()
    errors[:2] = 0
    errors[7] = bound_of_sum(100) + 1
    with pytest.raises(CodecError, match="error sums are larger"):
        unpacked_sum(ring, packed(ring, np.zeros(3 * 4999, np.int64), errors), 3 * 4999, 100)
    honest = np.concatenate([gaussian(5000, counting_random(seed))[None] for seed in range(10)]).sum(axis=0)
    check_noise(honest, 10, "error")
    for wrong in (honest * 2, np.full(5000, 60)):
        assert np.abs(wrong).max() <= bound_of_sum(10)
        with pytest.raises(CodecError):
            check_noise(wrong, 10, "error")


def test_zeros_behind_the_values_are_checked() -> None:
    ring = Ring(4096, primes_below(4096, 3), 3, 28)
    rows = np.zeros((3, 15), np.int64)  # 40 values in 14 coefficients, and one of zeros
    rows[0, 0] = 5

    def opened() -> list[int]:
        whole = packed(ring, rows.reshape(-1), np.zeros(16, np.int64))[:, :15]
        return unpacked_sum(ring, whole, 40, 3).tolist()

    assert opened() == [5, *[0] * 39]
    for place in ((2, 12), (2, 13), (0, 14)):
        rows[place] = 1
        with pytest.raises(CodecError, match="does not end with zeros"):
            opened()
        rows[place] = 0


@pytest.fixture(scope="module")
def played() -> Round:
    return Round(small_plan()).contribute()


def test_what_the_server_hands_out_is_read_back_and_has_one_form(played: Round) -> None:
    plan, keys, statements = played.plan, played.committee.members, played.statements()
    confirmed = {name: played.confirm(name)[0].signature for name in played.members[1:]}
    bodies = (join_keys(key.encode() for key in keys), b"".join(statement.encode() for statement in statements))
    signatures = join_confirmations(played.members[::-1], confirmed)
    assert tuple(split_keys(bodies[0])) == keys
    assert {len(replace(key, member_id="m" * LONGEST_ID).encode()) for key in keys} == {LONGEST_KEY}
    assert list(split_statements(plan, bodies[1], len(statements))) == statements
    assert signatures.startswith(bytes(64)) and split_confirmations(played.committee, signatures) == confirmed
    for refuse in (
        *(lambda wrong=wrong: split_keys(wrong) for wrong in (bodies[0][:-1], bodies[0] + b"\x01")),
        lambda: split_keys(join_keys([keys[0].encode()]) * 17),
        lambda: split_statements(plan, bodies[1], len(statements) - 1),
        *(lambda wrong=wrong: split_statements(plan, wrong, 7) for wrong in (bodies[1][:-1], bodies[1] + b"\x01")),
        lambda: split_confirmations(played.committee, signatures[:-1]),
    ):
        with pytest.raises(CodecError):
            refuse()


MEMBERS = ("a", "b", "c", "d", "e")


def test_of_members_that_report_the_less_distrusted_are_believed() -> None:
    assert kept_from_opening(MEMBERS, {"d": ["x"], "e": ["x", "y"], "c": []}, 3, {}) == frozenset()  # enough without
    reports = {"a": ["liar 1"], "b": ["liar 2"], "c": ["x"], "d": [], "e": ["x"]}
    assert kept_from_opening(MEMBERS, reports, 3, {}) == {"liar 1", "liar 2", "x"}  # a, b and c: smallest ids
    assert kept_from_opening(MEMBERS, reports, 3, {"a": 1, "b": 1}) == {"x"}  # c, d and e


@given(reports=st.dictionaries(st.sampled_from(MEMBERS), st.frozensets(st.sampled_from("uvwxyz"))))
@settings(max_examples=40, deadline=None)
def test_without_those_kept_out_enough_members_can_open_the_rest(reports: dict[str, frozenset[str]]) -> None:
    out = kept_from_opening(MEMBERS, reports, 3, {})
    assert sum(not reports.get(member, frozenset()) - out for member in MEMBERS) >= 3
    assert out <= frozenset().union(*reports.values())
