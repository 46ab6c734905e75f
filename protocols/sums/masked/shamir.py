"""Shamir sharing (Commun. ACM, 1979) of 32-byte secrets over the field of the prime p = 2^256 + 297.

A secret is a little-endian integer below 2^256. A share is the value of a random polynomial of degree t-1, whose
constant is the secret, at a public point, as 33 little-endian bytes. Any t shares give the secret; t-1 reveal nothing.

*Wrong shares.* The server knows commitments to the secret and to each share: see `protocols.sums.masked.shares`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Final

import numpy as np

from protocols.crypto.random import Randomness
from protocols.errors import CodecError, ParameterError

PRIME: Final = 2**256 + 297


def _value_at(polynomial: Sequence[int], point: int) -> int:
    """Return the polynomial's value at `point` modulo p, by Horner's rule."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def _inverses(elements: Sequence[int]) -> list[int]:
    """Return the inverses of elements, none of them 0 modulo p.

    One inversion in total, and three products per element (Montgomery, 1987).
    """
    products = [1]
    for element in elements:
        products.append(products[-1] * element % PRIME)
    inverse = pow(products[-1], -1, PRIME)
    out = []
    for element, product in zip(reversed(elements), reversed(products[:-1]), strict=True):
        out.append(inverse * product % PRIME)
        inverse = inverse * element % PRIME
    return out[::-1]


SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33


_LARGEST_POINT: Final = 2**31 - 1


def split(secret: bytes, threshold: int, points: Sequence[int], random: Randomness = os.urandom) -> list[bytes]:
    """Return one share of 33 bytes for each point; any `threshold` of them give `secret`.

    points: distinct, 1 to 2^31-1. secret: 32 bytes.
    Raises `ParameterError` for a secret that is not 32 bytes, invalid points, or a threshold above their number.
    """
    if len(secret) != SECRET_BYTES:
        raise ParameterError(f"a secret must be {SECRET_BYTES} bytes, got {len(secret)}")
    _check_points(points)
    if not 1 <= threshold <= len(points):
        raise ParameterError(f"a threshold must be 1 to the number of shares, {len(points)}, got {threshold}")
    coefficients = [int.from_bytes(secret, "little"), *(_field_element(random) for _ in range(threshold - 1))]
    return [_value_at(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the 32-byte secret, from the `threshold` shares with the lowest points (point -> share).

    Raises `ParameterError` for fewer shares, and `CodecError` for a share that is not a field element, or if the result
    does not fit 32 bytes: then a share is wrong. A result that fits may still be wrong: see `shares.py`.
    """
    _check_points(shares.keys())
    if not 1 <= threshold <= len(shares):
        raise ParameterError(f"{threshold} shares are needed, got {len(shares)}")
    points = tuple(sorted(shares)[:threshold])
    values = [int.from_bytes(shares[point], "little") for point in points]
    for point, value in zip(points, values, strict=True):
        if len(shares[point]) != SHARE_BYTES or value >= PRIME:
            raise CodecError(f"the share of point {point} is not {SHARE_BYTES} bytes of a field element")
    secret = sum(weight * value for weight, value in zip(_weights(points), values, strict=True)) % PRIME
    if secret >= 1 << 8 * SECRET_BYTES:
        raise CodecError(f"the {threshold} shares do not give a secret: at least one of them is wrong")
    return secret.to_bytes(SECRET_BYTES, "little")


def _check_points(points: Collection[int]) -> None:
    if len(set(points)) < len(points) or not all(1 <= point <= _LARGEST_POINT for point in points):
        raise ParameterError(f"the points of shares must be distinct and 1 to {_LARGEST_POINT}")


def _field_element(random: Randomness) -> int:
    """Return a uniform field element: 257 random bits, drawn again until they are below p (twice on average)."""
    while True:
        element = int.from_bytes(random(SHARE_BYTES), "little") >> 7
        if element < PRIME:
            return element


@lru_cache(maxsize=64)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the Lagrange weights at 0, prod_{j != i} x_j / (x_j - x_i); cached, because points often repeat."""
    whole, places = prod(points), np.array(points, np.int64)
    differences = places - places[:, None]
    np.fill_diagonal(differences, places)  # row i: x_i in place of its difference to itself
    below = [prod(row) % PRIME for row in differences.tolist()]
    return tuple(whole * inverse % PRIME for inverse in _inverses(below))
