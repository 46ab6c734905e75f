"""Shares, packed contributions, and what the server hands out in a one-shot round."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import CodecError, ThresholdError
from protocols.sums.oneshot.committee import (
    join_confirmations,
    join_keys,
    split_confirmations,
    split_keys,
    split_shares,
    split_statements,
)
from protocols.sums.oneshot.member import candidates, split
from protocols.sums.oneshot.packing import check_noise, packed_residues
from protocols.sums.oneshot.polynomials import Ring, bound_of_sum, choose_ring, primes_below
from protocols.sums.oneshot.sampler import gaussian
from protocols.sums.oneshot.server import kept_from_opening
from tests.protocols.sums.oneshot.rounds import Round, counting_random, small_plan, unpacked_sum

(PRIME,) = primes_below(2048, 1)
SIZE, CLIENTS = 64, 20


@pytest.fixture
def summed() -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The sum of secrets of several clients, and the sums of their shares at 7 points, 3 of which are enough."""
    secrets = [gaussian(SIZE, os.urandom) for _ in range(CLIENTS)]
    shares = [split(secret, 3, range(1, 8), PRIME, os.urandom) for secret in secrets]
    sums = {point + 1: sum(one[point].astype(np.uint64) for one in shares) % PRIME for point in range(7)}
    return sum(secrets), {point: value.astype(np.uint32) for point, value in sums.items()}


@pytest.mark.parametrize("points", [(1, 2, 3), (2, 5, 7), (7, 1, 4, 3), range(1, 8)])
def test_any_t_sums_of_shares_give_the_sum_of_secrets(
    summed: tuple[np.ndarray, dict[int, np.ndarray]], points: tuple[int, ...]
) -> None:
    secret, shares = summed
    ((got, wrong),) = candidates({point: shares[point] for point in points}, 3, PRIME, CLIENTS)
    assert got.tolist() == secret.tolist()
    assert wrong == frozenset()


def test_fewer_shares_are_refused(summed: tuple[np.ndarray, dict[int, np.ndarray]]) -> None:
    with pytest.raises(ThresholdError):
        candidates({1: summed[1][1], 2: summed[1][2]}, 3, PRIME, CLIENTS)


@pytest.mark.parametrize("wrong", [(1,), (2, 6), (1, 3, 5), (1, 2, 3, 4)])
def test_wrong_shares_are_named(summed: tuple[np.ndarray, dict[int, np.ndarray]], wrong: tuple[int, ...]) -> None:
    secret, shares = summed
    rng = np.random.default_rng(1)
    for point in wrong:
        shares[point] = rng.integers(0, PRIME, SIZE).astype(np.uint32)
    ((got, named),) = candidates(shares, 3, PRIME, CLIENTS)
    assert got.tolist() == secret.tolist()
    assert named == frozenset(wrong)


def test_one_wrong_coefficient_is_enough(summed: tuple[np.ndarray, dict[int, np.ndarray]]) -> None:
    secret, shares = summed
    shares[4][SIZE - 1] ^= 1
    ((got, named),) = candidates(shares, 3, PRIME, CLIENTS)
    assert (got.tolist(), named) == (secret.tolist(), frozenset({4}))


def test_too_many_wrong_shares_give_nothing(summed: tuple[np.ndarray, dict[int, np.ndarray]]) -> None:
    rng = np.random.default_rng(1)
    shares = summed[1] | {point: rng.integers(0, PRIME, SIZE).astype(np.uint32) for point in range(1, 6)}
    with pytest.raises(CodecError, match="too many of 7"):
        candidates(shares, 3, PRIME, CLIENTS)


def test_shares_of_one_secret_are_uniform() -> None:
    """t - 1 shares: at every point all residues are equally likely, whatever the secret."""
    shares = split(np.full(200_000, 58), 3, (1, 2), PRIME, os.urandom)
    for share in shares:
        counts, _ = np.histogram(share, 16, (0, PRIME))
        assert ((counts - 12_500) ** 2 / 12_500).sum() < 60


# --- packing ----------------------------------------------------------------------------------------------------------


def packed(ring: Ring, steps: np.ndarray, errors: np.ndarray) -> np.ndarray:
    return packed_residues(ring, steps, errors, np.zeros((len(ring.primes), ring.coefficients(steps.size))))


@given(st.integers(16, 52), st.integers(1, 60), st.integers(3, 10**6), st.integers(0, 2**32))
def test_sums_of_any_size_that_fits_come_back_exactly(bits: int, values: int, clients: int, seed: int) -> None:
    ring, rng = choose_ring(bits, values, clients, 16, 5), np.random.default_rng(seed)
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
    ring = Ring(4096, primes_below(4096, 3), 3, 28)
    bound = bound_of_sum(1000)
    errors = np.zeros(5000, np.int64)
    errors[:2] = bound, -bound
    steps = np.full(3 * 4999, -(2**27))
    got = unpacked_sum(ring, packed(ring, steps, errors), steps.size, 1000)
    assert (got == -(2**27)).all()


def test_errors_beyond_the_bound_are_refused() -> None:
    ring = Ring(4096, primes_below(4096, 3), 3, 28)
    errors = np.zeros(5000, np.int64)
    errors[7] = bound_of_sum(100) + 1
    with pytest.raises(CodecError, match="error sums are larger"):
        unpacked_sum(ring, packed(ring, np.zeros(3 * 4999, np.int64), errors), 3 * 4999, 100)


def test_errors_that_are_too_wide_are_refused() -> None:
    honest = np.concatenate([gaussian(5000, counting_random(seed))[None] for seed in range(10)]).sum(axis=0)
    check_noise(honest, 10, "error")
    for wrong in (honest * 2, np.full(5000, 60)):
        assert np.abs(wrong).max() <= bound_of_sum(10)
        with pytest.raises(CodecError):
            check_noise(wrong, 10, "error")


@pytest.mark.parametrize("place", [40, 41, 42])
def test_zeros_behind_the_values_are_checked(place: int) -> None:
    ring = Ring(4096, primes_below(4096, 3), 3, 28)
    rows = np.zeros((3, 15), np.int64)  # 40 values in 14 coefficients, and one of zeros
    rows.reshape(-1)[0] = 5
    if place < 42:
        rows[2, 12 + place - 40] = 1
    else:
        rows[0, 14] = 1
    whole = packed(ring, rows.reshape(-1), np.zeros(16, np.int64))[:, :15]
    with pytest.raises(CodecError, match="does not end with zeros"):
        unpacked_sum(ring, whole, 40, 3)
    rows[2, 12:] = 0
    rows[0, 14] = 0
    whole = packed(ring, rows.reshape(-1), np.zeros(16, np.int64))[:, :15]
    assert unpacked_sum(ring, whole, 40, 3).tolist() == [5, *[0] * 39]


# --- what the server hands out in a one-shot round: round trips, and bytes that are refused ---------------------------


@pytest.fixture(scope="module")
def played() -> Round:
    made = Round(small_plan())
    made.contribute()
    return made


def test_the_keys_of_a_committee(played: Round) -> None:
    body = join_keys(key.encode() for key in played.committee.members)
    assert tuple(split_keys(body)) == played.committee.members
    one = join_keys([played.committee.members[0].encode()])
    for wrong in (body[:-1], body + b"\x01", one * 17):
        with pytest.raises(CodecError):
            split_keys(wrong)


def test_statements_and_shares(played: Round) -> None:
    statements = played.statements()
    body = b"".join(statement.encode() for statement in statements)
    assert split_statements(played.plan, body, len(statements)) == statements
    for wrong, most in ((body, len(statements) - 1), (body[:-1], 6), (body + b"\x01", 7)):
        with pytest.raises(CodecError):
            split_statements(played.plan, wrong, most)
    sealed = [upload.ticket.sealed[0] for upload in played.uploads.values()]
    assert split_shares(played.plan, b"".join(sealed), len(sealed)) == sealed
    with pytest.raises(CodecError):
        split_shares(played.plan, b"".join(sealed), len(sealed) - 1)


def test_confirmations(played: Round) -> None:
    confirmed = {name: played.confirm(name)[0].signature for name in played.members[1:]}
    body = join_confirmations(played.members[::-1], confirmed)
    assert body.startswith(bytes(64))
    assert split_confirmations(played.committee, body) == confirmed
    with pytest.raises(CodecError):
        split_confirmations(played.committee, body[:-1])


MEMBERS = ("a", "b", "c", "d", "e")


def test_reports_that_leave_enough_members_keep_nobody_out() -> None:
    assert kept_from_opening(MEMBERS, {"d": ["x"], "e": ["x", "y"], "c": []}, 3, {}) == frozenset()


def test_of_members_that_report_the_less_distrusted_are_believed() -> None:
    reports = {"a": ["liar 1"], "b": ["liar 2"], "c": ["x"], "d": [], "e": ["x"]}
    assert kept_from_opening(MEMBERS, reports, 3, {}) == {"liar 1", "liar 2", "x"}  # a, b and c: smallest ids
    assert kept_from_opening(MEMBERS, reports, 3, {"a": 1, "b": 1}) == {"x"}  # c, d and e


@given(reports=st.dictionaries(st.sampled_from(MEMBERS), st.frozensets(st.sampled_from("uvwxyz"))))
def test_without_those_kept_out_enough_members_can_open_the_rest(reports: dict[str, frozenset[str]]) -> None:
    out = kept_from_opening(MEMBERS, reports, 3, {})
    assert sum(not reports.get(member, frozenset()) - out for member in MEMBERS) >= 3
    assert out <= frozenset().union(*reports.values())
