"""The prime field of secret sharing, its polynomials, and Reed-Solomon decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final

__all__ = ["PRIME", "Polynomial", "decode", "inverses", "value_at"]

PRIME: Final = 2**256 + 297

Polynomial = list[int]
"""Coefficients below p, lowest first, the last one not 0; [] is the zero polynomial."""


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


def decode(values: Mapping[int, int], size: int) -> Polynomial | None:
    """Return the polynomial with at most `size` coefficients through all but (m - size) // 2 of the m values, or None.

    values: point -> value. Gao's decoder ("A new algorithm for decoding Reed-Solomon codes", 2003): the Euclidean
    algorithm on g0 = prod(x - a_i) and g1, the polynomial through all values, yields f * v, where v is 0 at the wrong
    points. O(m^2) products.
    """
    if len(values) < size:
        return None
    vanishing, through = _interpolate(values)
    older, newer = vanishing, through
    factor_older, factor_newer = [], [1]
    while 2 * (len(newer) - 1) >= len(values) + size:
        quotient, remainder = _divide(older, newer)
        older, newer = newer, remainder
        factor_older, factor_newer = factor_newer, _subtract(factor_older, _multiply(quotient, factor_newer))
    polynomial, remainder = _divide(newer, factor_newer)
    return None if remainder or len(polynomial) > size else polynomial


def _interpolate(values: Mapping[int, int]) -> tuple[Polynomial, Polynomial]:
    """Return prod(x - a_i), and the polynomial of degree below m through all m values (Lagrange)."""
    vanishing = [1]
    for point in values:
        vanishing = _subtract([0, *vanishing], [coefficient * point % PRIME for coefficient in vanishing])
    quotients = [_divide_by_root(vanishing, point) for point in values]
    slopes = inverses([value_at(quotient, point) for quotient, point in zip(quotients, values, strict=True)])
    weights = [value * slope % PRIME for value, slope in zip(values.values(), slopes, strict=True)]
    columns = zip(*quotients, strict=True)
    return vanishing, _trimmed([sum(w * c for w, c in zip(weights, column, strict=True)) % PRIME for column in columns])


def _divide_by_root(polynomial: Polynomial, root: int) -> Polynomial:
    """Return polynomial / (x - root), which has no remainder."""
    quotient, carried = [], 0
    for coefficient in reversed(polynomial[1:]):
        carried = (carried * root + coefficient) % PRIME
        quotient.append(carried)
    return quotient[::-1]


def _divide(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return quotient and remainder; `divisor` must not be zero."""
    remainder, quotient = list(dividend), [0] * max(len(dividend) - len(divisor) + 1, 0)
    (leading,) = inverses(divisor[-1:])
    for shift in reversed(range(len(quotient))):
        factor = remainder[shift + len(divisor) - 1] * leading % PRIME
        quotient[shift] = factor
        for place, coefficient in enumerate(divisor, shift):
            remainder[place] = (remainder[place] - factor * coefficient) % PRIME
    return _trimmed(quotient), _trimmed(remainder)


def _multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    product = [0] * (len(left) + len(right))
    for place, factor in enumerate(left):
        for shift, coefficient in enumerate(right, place):
            product[shift] = (product[shift] + factor * coefficient) % PRIME
    return _trimmed(product)


def _subtract(left: Polynomial, right: Polynomial) -> Polynomial:
    return _trimmed([(a - b) % PRIME for a, b in zip_longest(left, right, fillvalue=0)])


def _trimmed(coefficients: Polynomial) -> Polynomial:
    while coefficients and not coefficients[-1]:
        coefficients.pop()
    return coefficients
