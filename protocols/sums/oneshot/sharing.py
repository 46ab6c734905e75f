"""Shamir sharing (Commun. ACM, 1979) of a secret polynomial, coefficient by coefficient, modulo the ring's first prime.

Shares are linear: the sum of the shares at a point is a share of the sum of the secrets. A sum of up to a million
secrets is below 2^26 in size, so half of a 32-bit prime holds it with its sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError, ThresholdError
from protocols.sums.oneshot.packing import check_noise
from protocols.sums.oneshot.polynomials import canonical
from protocols.sums.oneshot.sampler import Randomness, uniform_residues

__all__ = ["candidates", "split"]

Residues = NDArray[np.uint32]


def split(
    secret: NDArray[np.int64], threshold: int, points: Sequence[int], prime: int, random: Randomness
) -> list[Residues]:
    """Return a share, uint32 (N,), for each of `points` (1 to 2^16); any `threshold` of them give the secret.

    secret: int64 (N,), below half of the prime in size.
    """
    drawn = uniform_residues((threshold - 1) * secret.size, prime, random)
    coefficients = drawn.reshape(threshold - 1, secret.size).astype(np.float64)
    shares = []
    for point in points:
        value = np.zeros(secret.size)
        for coefficient in coefficients:  # Horner's rule, the constant last; sizes below 2^49
            value = (value + coefficient) * float(point)
            value = canonical(value, prime).astype(np.float64)
        shares.append(canonical(value + secret, prime))
    return shares


def candidates(
    shares: Mapping[int, Residues], threshold: int, prime: int, contributions: int
) -> list[tuple[NDArray[np.int64], frozenset[int]]]:
    """Return the possible sums of the secrets, int64 (N,), each with the points whose shares are then wrong.

    shares: point -> sum of shares, uint32 (N,). Takes the largest sets of shares that lie on polynomials of degree
    below `threshold` and whose secret is as small as a sum of `contributions` secrets; up to m - t of m may be wrong.
    There is one candidate, unless a member shifted its share so that another set of t shares gives a small secret too:
    then only the right one unmasks the sum. Raises `ThresholdError` for fewer shares than `threshold`, `CodecError` if
    no set of t shares fits.
    """
    if len(shares) < threshold:
        raise ThresholdError("unmasking", threshold, len(shares))
    points = sorted(shares)
    for size in range(len(points), threshold - 1, -1):
        found = list(_fitting(shares, points, size, threshold, prime, contributions))
        if found:
            return [(secret, frozenset(points) - frozenset(kept)) for secret, kept in found]
    raise CodecError(f"too many of {len(points)} summed shares are wrong, or a client's shares are: one more may tell")


def _fitting(
    shares: Mapping[int, Residues], points: Sequence[int], size: int, threshold: int, prime: int, contributions: int
) -> Iterator[tuple[NDArray[np.int64], tuple[int, ...]]]:
    """Yield every set of `size` shares on one polynomial with a small secret, and that secret."""
    for kept in combinations(points, size):
        first = kept[:threshold]
        if any((_value_at(shares, first, other, prime) != shares[other]).any() for other in kept[threshold:]):
            continue
        secret = _value_at(shares, first, 0, prime).astype(np.int64)
        secret -= np.where(secret > prime // 2, prime, 0)
        try:
            check_noise(secret, contributions, "secret")
        except CodecError:
            continue
        yield secret, kept


def _value_at(shares: Mapping[int, Residues], points: Sequence[int], at: int, prime: int) -> Residues:
    """Return the value at `at` of the polynomials through the shares of `points` (Lagrange), uint32 (N,)."""
    total = np.zeros(shares[points[0]].size, np.uint64)
    for point in points:
        others = [other for other in points if other != point]
        above = prod(at - other for other in others)
        weight = above * pow(prod(point - other for other in others), -1, prime) % prime
        total += shares[point].astype(np.uint64) * np.uint64(weight) % np.uint64(prime)
    return (total % np.uint64(prime)).astype(np.uint32)
