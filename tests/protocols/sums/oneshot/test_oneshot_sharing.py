from __future__ import annotations

import os

import numpy as np
import pytest

from protocols.errors import CodecError, ThresholdError
from protocols.sums.oneshot.member import candidates, split
from protocols.sums.oneshot.polynomials import primes_below
from protocols.sums.oneshot.sampler import gaussian

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
