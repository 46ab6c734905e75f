from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import CodecError
from protocols.sums.oneshot.packing import check_noise, packed_residues
from protocols.sums.oneshot.polynomials import Ring, bound_of_sum, choose_ring, primes_below
from protocols.sums.oneshot.sampler import gaussian
from tests.protocols.sums.oneshot.rounds import counting_random, unpacked_sum


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
