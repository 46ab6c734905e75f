"""Shamir sharing (Commun. ACM, 1979) of 32-byte secrets over the field of p = 2^256 + 297, a prime.

A secret is a little-endian integer below 2^256; a share is the value of a random polynomial of degree t-1, whose
constant is the secret, at a public point, as 33 little-endian bytes. Any t shares give the secret, t-1 say nothing.

*Wrong shares.* Who reconstructs knows a commitment to the secret, so a wrong one never passes. When the first t shares
fail it, all m are decoded as a Reed-Solomon code: (m-t)//2 wrong ones are corrected with O(m^2) products. With m-t odd
that is done again with each share left out in turn, O(m^3) in all, which corrects one more: one share to spare is
enough to find one wrong share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Final

from protocols.errors import CodecError, ParameterError
from protocols.sums.masked.field import PRIME, decode, inverses, value_at

__all__ = ["SECRET_BYTES", "SHARE_BYTES", "Randomness", "combine", "combine_checked", "split"]

SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33

Randomness = Callable[[int], bytes]
"""random(n) -> n secret random bytes; only test vectors bring their own."""

_LARGEST_POINT: Final = 2**31 - 1


def split(secret: bytes, threshold: int, points: Sequence[int], random: Randomness = os.urandom) -> list[bytes]:
    """One share of 33 bytes for each of `points` (distinct, 1 to 2^31-1), any `threshold` of which give `secret`.

    `ParameterError` for a secret that is not 32 bytes, or a threshold that so many points cannot reach.
    """
    if len(secret) != SECRET_BYTES:
        raise ParameterError(f"a secret has {SECRET_BYTES} bytes, this one has {len(secret)}")
    _check_points(points)
    if not 1 <= threshold <= len(points):
        raise ParameterError(f"a threshold is 1 to the number of shares, {len(points)}, got {threshold}")
    coefficients = [int.from_bytes(secret, "little"), *(_field_element(random) for _ in range(threshold - 1))]
    return [value_at(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The 32-byte secret, from the `threshold` shares with the lowest points (point -> share).

    `ParameterError` when there are fewer; `CodecError` for a share that is no field element, or when what they give
    does not fit 32 bytes: then one of them was wrong. That it does fit proves nothing: see `combine_checked`.
    """
    _check_enough(shares, threshold)
    lowest = sorted(shares)[:threshold]
    broken = [point for point in lowest if not _is_element(shares[point])]
    if broken:
        raise CodecError(f"the share of point {broken[0]} is not {SHARE_BYTES} bytes of a field element")
    secret = _at_zero({point: int.from_bytes(shares[point], "little") for point in lowest})
    if secret is None:
        raise CodecError(f"the {threshold} shares give no secret: at least one of them is wrong")
    return secret


def combine_checked(
    shares: Mapping[int, bytes], threshold: int, check: Callable[[bytes], bool]
) -> tuple[bytes, frozenset[int]]:
    """The secret that passes `check` (its commitment), and the points whose shares were found to be wrong.

    Where the first `threshold` field elements pass, no more is looked for; otherwise up to (m-t+1)//2 wrong ones of m
    elements are found. `ParameterError` when there are fewer shares than `threshold`; `CodecError` when no secret
    passes: it names the points whose shares are no field elements, of the others it is not known who is wrong.
    """
    _check_enough(shares, threshold)
    broken = frozenset(point for point, share in shares.items() if not _is_element(share))
    values = {point: int.from_bytes(shares[point], "little") for point in sorted(shares) if point not in broken}
    if len(values) >= threshold:
        secret = _at_zero(dict(islice(values.items(), threshold)))
        if secret is not None and check(secret):
            return secret, broken
    for kept in _candidates(values, threshold):
        polynomial = decode(kept, threshold)
        secret = None if polynomial is None else _as_secret(value_at(polynomial, 0))
        if polynomial is not None and secret is not None and check(secret):
            return secret, broken | {point for point, value in values.items() if value_at(polynomial, point) != value}
    named = f"; no field elements: points {', '.join(map(str, sorted(broken)))}" if broken else ""
    raise CodecError(f"too many of {len(shares)} shares are wrong: they do not give the secret committed to{named}")


def _candidates(values: Mapping[int, int], threshold: int) -> Iterator[Mapping[int, int]]:
    """All values; where an odd number is to spare, also all but each one."""
    if len(values) > threshold:
        yield values
        if (len(values) - threshold) % 2:
            for left_out in values:
                yield {point: value for point, value in values.items() if point != left_out}


def _check_points(points: Collection[int]) -> None:
    if len(set(points)) < len(points) or not all(1 <= point <= _LARGEST_POINT for point in points):
        raise ParameterError(f"the points of shares are distinct and 1 to {_LARGEST_POINT}")


def _check_enough(shares: Mapping[int, bytes], threshold: int) -> None:
    _check_points(shares.keys())
    if not 1 <= threshold <= len(shares):
        raise ParameterError(f"{threshold} shares are needed, {len(shares)} are there")


def _field_element(random: Randomness) -> int:
    """Uniform: 257 random bits are taken again until they are below p, twice on average."""
    while True:
        element = int.from_bytes(random(SHARE_BYTES), "little") >> 7
        if element < PRIME:
            return element


def _is_element(share: bytes) -> bool:
    return len(share) == SHARE_BYTES and int.from_bytes(share, "little") < PRIME


def _as_secret(element: int) -> bytes | None:
    return element.to_bytes(SECRET_BYTES, "little") if element < 1 << 8 * SECRET_BYTES else None


def _at_zero(values: Mapping[int, int]) -> bytes | None:
    """The secret of the polynomial through all values; None when it does not fit 32 bytes."""
    weights = _weights(tuple(values))
    return _as_secret(sum(w * value for w, value in zip(weights, values.values(), strict=True)) % PRIME)


@lru_cache(maxsize=64)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0, prod_{j != i} x_j / (x_j - x_i); kept, for secrets may be shared at the same points."""
    whole = prod(points)
    below = [x * prod(y - x for y in points if y != x) % PRIME for x in points]
    return tuple(whole * inverse % PRIME for inverse in inverses(below))
