"""The ring of a one-shot sum and how values are packed into its coefficients: the choice with the smallest upload.

`per` values of b bits share a coefficient, above each other: M = v_0 + 2^b v_1 + ..., T = 2^(b per). A client sends
A_j s + T e_j + M_j modulo q, a product of K primes just below 2^32. (T is invertible modulo q, so this is the ring-LWE
sample A_j s / T + e_j with a public factor, as in BGV.) A sum T E + M is recovered if every |E| < q / (2 T). Primes
are 1 modulo 2 N, so that any implementation may multiply with a number-theoretic transform.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, isqrt, prod, sqrt
from typing import Final

from protocols.sums.oneshot.parameters import SIGMA
from protocols.sums.ring_security import LOG_Q_CAPS

__all__ = ["PRIME_BITS", "TAIL", "Ring", "bound_of_sum", "choose_ring", "primes_below"]

PRIME_BITS: Final = 32

TAIL: Final = 10
"""Standard deviations that a sum of Gaussian coefficients may reach: beyond with probability below 2^-71 each."""

_CHECK_BITS: Final = 64
"""Bits of the zeros behind the values, which show that a sum is decoded with the right sum of secrets."""


def bound_of_sum(contributions: int) -> int:
    """Return the largest size of a coefficient of a sum of so many secrets or errors: `TAIL` standard deviations."""
    return ceil(TAIL * SIGMA * sqrt(contributions))


@dataclass(frozen=True)
class Ring:
    """R_q with q the product of `primes`, N = `degree`, and `per` values of `bits` bits in a coefficient."""

    degree: int
    primes: tuple[int, ...]
    per: int
    bits: int

    @cached_property
    def modulus(self) -> int:
        """q."""
        return prod(self.primes)

    @property
    def message_bits(self) -> int:
        """log2 T: bits of a coefficient that hold values; above them are the errors."""
        return self.per * self.bits

    @cached_property
    def error_room(self) -> int:
        """Largest size of an error's sum that decodes: floor(q / T) // 2 - 1."""
        return (self.modulus >> self.message_bits) // 2 - 1

    @property
    def check_coefficients(self) -> int:
        """Coefficients of zeros behind the values, 64 bits or more of them."""
        return -(-_CHECK_BITS // self.message_bits)

    def coefficients(self, values: int) -> int:
        """Return m: coefficients of a contribution of `values` values, with the zeros behind them."""
        return -(-values // self.per) + self.check_coefficients

    def polynomials(self, values: int) -> int:
        """Return P: polynomials that the coefficients fill; the last one is cut where they end."""
        return -(-self.coefficients(values) // self.degree)

    def body_bytes(self, values: int) -> int:
        """Return the length of a contribution of `values` values in bytes."""
        return 4 * len(self.primes) * self.coefficients(values)


def choose_ring(bits: int, values: int, contributions: int, share_overhead: int, committee: int) -> Ring:
    """Return the ring with the smallest upload, contribution and shares together; of equal ones that of smallest N.

    bits: 16 to 52. contributions: up to `MOST_CLIENTS`; there is a ring for all of these. share_overhead: bytes of a
    sealed share besides its 4 N bytes.
    """
    rings = [
        ring
        for degree, cap in LOG_Q_CAPS["ternary"].items()
        for count in range(1, cap // PRIME_BITS + 1)
        if (ring := _ring(degree, count, bits, contributions)) is not None
    ]
    return min(rings, key=lambda ring: ring.body_bytes(values) + committee * (4 * ring.degree + share_overhead))


def _ring(degree: int, count: int, bits: int, contributions: int) -> Ring | None:
    """Return the ring of `count` primes with the most values a coefficient; None if not one fits beside the errors."""
    for per in range(PRIME_BITS * count // bits, 0, -1):
        ring = Ring(degree, primes_below(degree, count), per, bits)
        if ring.error_room >= bound_of_sum(contributions):
            return ring
    return None


@lru_cache(maxsize=64)
def primes_below(degree: int, count: int) -> tuple[int, ...]:
    """Return the `count` largest primes p = 1 mod 2 N below 2^32, descending."""
    found: list[int] = []
    candidate = (2**PRIME_BITS - 1) // (2 * degree) * (2 * degree) + 1
    while len(found) < count:
        if candidate < 2**PRIME_BITS and _is_prime(candidate):
            found.append(candidate)
        candidate -= 2 * degree
    return tuple(found)


def _is_prime(number: int) -> bool:
    """Return whether an odd number below 2^32 is prime, by trial division."""
    return all(number % divisor for divisor in range(3, isqrt(number) + 1, 2))
