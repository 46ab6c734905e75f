"""The prime field of secret sharing, and its polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["PRIME", "inverses", "value_at"]

PRIME: Final = 2**256 + 297


def value_at(polynomial: Sequence[int], point: int) -> int:
    """Return the polynomial's value at `point` modulo p, by Horner's rule."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def inverses(elements: Sequence[int]) -> list[int]:
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
