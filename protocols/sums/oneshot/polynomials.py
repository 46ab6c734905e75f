"""The ring of a one-shot sum: its choice, exact arithmetic in it, and the secret randomness of a round.

*Choice.* `per` values of b bits share a coefficient, above each other: M = v_0 + 2^b v_1 + ..., T = 2^(b per). A client
sends A_j s + T e_j + M_j modulo q, a product of K primes just below 2^32; the ring is that with the smallest upload. (T
is invertible modulo q, so this is the ring-LWE sample A_j s / T + e_j with a public factor, as in BGV.) A sum T E + M
is recovered if every |E| < q / (2 T). Primes are 1 modulo 2 N, so that any implementation may multiply with a
number-theoretic transform.

*Arithmetic* in R_q = Z_q[X] / (X^N + 1): public polynomials from a seed, and their products with small secrets. A
product modulo X^N + 1 is a complex product modulo X^(N/2) - i (the halves of a polynomial become real and imaginary
parts), which a twist by powers of exp(i pi / N) makes cyclic, so that FFTs of length N/2 compute it. Results are exact:
factors are split so that the rounding error of the FFTs is proven to stay below 1/2 (Percival, "Rapid multiplication
modulo the sum and difference of highly composite numbers", Math. Comp. 2003, theorem 5.1):

    error <= |x| |y| ((1 + u)^(3n) (1 + u sqrt 5)^(3n+1) (1 + b)^(3n) - 1) < |x| |y| 2^-44

for n = log2(N/2) + 1 <= 13 levels, the twist being one, u = 2^-53 and roots of unity with an error b <= 4 u. Residues
are split into halves of 16 bits, of size at most 2^15, and secrets into limbs of size at most 2^11. So |x| |y| is at
most 2^15 2^11 N <= 2^39, and the error is below 2^-5. All arithmetic is on whole arrays of float64, which holds
integers up to 2^53, without a branch on values.

*Secrets and errors* are discrete Gaussians of standard deviation `SIGMA` = 2 * 3.2, from a cumulative table in constant
time (`protocols.crypto.random`), within 2^-57 of the distribution (statistical distance), tail included. The source of
randomness is an argument. Moduli are bounded by the column for ternary secrets, the smaller one, of
`protocols.sums.ring_security`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import ceil, isqrt, prod, sqrt
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from numpy.typing import NDArray

from protocols.crypto.keys import domain_tag
from protocols.crypto.random import Randomness, cumulative_table, symmetric_samples
from protocols.layout import Floats
from protocols.sums.ring_security import LOG_Q_CAPS

SIGMA: Final = 6.4
"""Standard deviation of every coefficient of s and e_j. Given the sums over two or more honest clients, each sample is
as hard as plain ring-LWE of standard deviation 3.2: Hint-MLWE, Kim, Lee, Seo and Song (CRYPTO 2023, eprint 2023/623),
with one hint whose challenge is 1: 1 / 3.2^2 = 2 * (1 / 6.4^2 + 1 / 6.4^2). The theorem needs a smoothed lattice:

    sqrt(2 pi) * 3.2 >= sqrt(2) * eta(Z^N),   eta(Z^N) <= sqrt(ln(2 N (1 + 1/epsilon)) / pi)

for each polynomial (a hint with challenge 1 is about each by itself), and loses 2 epsilon for each. With epsilon =
2^-128, 3.2 exceeds what is needed by 2.1 % at N = 2048, 1.7 % at 4096 and 1.3 % at 8192: no `SIGMA` that is smaller by
more than this has the reduction."""

PRIME_BITS: Final = 32

_TAIL: Final = 10
"""Standard deviations that a sum of Gaussian coefficients may reach: beyond with probability below 2^-71 each."""

_CHECK_BITS: Final = 64
"""Bits of the zeros behind the values, which show that a sum is decoded with the right sum of secrets."""


def bound_of_sum(contributions: int) -> int:
    """Return the largest size of a coefficient of a sum of so many secrets or errors: `_TAIL` standard deviations."""
    return ceil(_TAIL * SIGMA * sqrt(contributions))


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


def choose_ring(bits: int, values: int, contributions: int, committee: int) -> Ring:
    """Return the ring with the smallest upload, contribution and shares together; of equal ones that of smallest N.

    bits: 16 to 52. contributions: up to `MOST_CLIENTS`; there is a ring for all of these. A share has 4 N bytes, and a
    tag of one length in all rings.
    """
    rings = [
        ring
        for degree, cap in LOG_Q_CAPS["ternary"].items()
        for count in range(1, cap // PRIME_BITS + 1)
        if (ring := _ring(degree, count, bits, contributions)) is not None
    ]
    return min(rings, key=lambda ring: ring.body_bytes(values) + committee * 4 * ring.degree)


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


_HALF: Final = 65536.0
_LIMB: Final = 4096.0
"""Base of the limbs of a secret: balanced digits of size at most 2^11."""
_SPARE_WORDS: Final = 64


def public_polynomials(binding: bytes, degree: int, primes: tuple[int, ...], polynomials: int) -> NDArray[np.uint32]:
    """Return the public polynomials A_j of a round, uint32 (primes, polynomials, degree), uniform modulo each prime.

    binding: 32 bytes to which both the task's terms and the round contribute (`OneshotContext.binding`): every party
    computes it, and a server cannot choose a polynomial, only ask for another hash. For prime number k: the first
    words (uint32 little-endian) below the prime of SHAKE128(domain_tag("oneshot polynomials", binding, k)).
    """
    return next(polynomial_blocks(binding, degree, primes, polynomials, polynomials))


def polynomial_blocks(
    binding: bytes, degree: int, primes: tuple[int, ...], polynomials: int, at_once: int
) -> Iterator[NDArray[np.uint32]]:
    """Yield what `public_polynomials` returns, `at_once` polynomials at a time: uint32 (primes, up to at_once, degree).

    Memory is that of a block.
    """
    streams = [_Residues(binding, number, prime) for number, prime in enumerate(primes)]
    for first, last in pairwise([*range(0, polynomials, at_once), polynomials]):
        taken = [stream.take((last - first) * degree) for stream in streams]
        yield np.stack(taken).reshape(len(primes), last - first, degree)


class _Residues:
    """The uniform residues of one prime, in their order; see `public_polynomials`.

    Needs OpenSSL 3.3, which every wheel of `cryptography` since version 46 brings.
    """

    def __init__(self, binding: bytes, number: int, prime: int) -> None:
        self._stream = hashes.XOFHash(hashes.SHAKE128(digest_size=sys.maxsize))
        self._stream.update(domain_tag("oneshot polynomials", binding, number))
        self._prime, self._left = prime, np.empty(0, np.uint32)

    def take(self, count: int) -> NDArray[np.uint32]:
        """Return the next `count` residues, uint32."""
        while self._left.size < count:
            words = np.frombuffer(self._stream.squeeze(4 * (count - self._left.size + _SPARE_WORDS)), "<u4")
            self._left = np.concatenate([self._left, words[words < self._prime]])
        taken, self._left = self._left[:count], self._left[count:].copy()
        return taken


def reduced(values: Floats, prime: int) -> Floats:
    """Return whole numbers of size at most 2^52 modulo a prime of 32 bits, of size at most prime / 2 + 2."""
    return values - np.rint(values * (1.0 / prime)) * float(prime)


def canonical(values: Floats, prime: int) -> NDArray[np.uint32]:
    """Return whole numbers of size at most 2^52 modulo a prime of 32 bits, uint32 from 0 to prime - 1."""
    rest = reduced(values, prime)
    rest += (rest < 0) * float(prime)
    return rest.astype(np.uint32)


def add_products(
    target: Floats, public: NDArray[np.uint32], secret: NDArray[np.int64], primes: tuple[int, ...]
) -> None:
    """Add A_j * secret modulo each prime to `target`, in place: whole numbers of size below 2^49 are added.

    target: float64 (primes, m) with m <= polynomials * N coefficients; products are cut where it ends. public: uint32
    (primes, polynomials, N). secret: int64 (N,), of size below 2^46. Everything is exact.
    """
    degree = secret.size
    transforms = [_transform(limb) for limb in _limbs(secret)]
    for start in range(0, target.shape[1], degree):
        for number, prime in enumerate(primes):
            part = target[number, start : start + degree]
            part += _products(public[number, start // degree], transforms, prime)[: part.size]


def _products(polynomial: NDArray[np.uint32], limbs: list[NDArray[np.complex128]], prime: int) -> Floats:
    """Return polynomial * secret modulo the prime, of size below 2^49."""
    centred = polynomial.astype(np.float64)
    centred -= (centred > prime / 2) * float(prime)
    high = np.rint(centred * (1 / _HALF))
    halves = _transform(np.stack([high, centred - high * _HALF]))
    total: Floats = np.zeros(polynomial.size)
    for limb in reversed(limbs):
        above, below = _back(halves * limb)
        if limb is not limbs[-1]:
            total = reduced(total, prime) * _LIMB
        total += reduced(above, prime) * _HALF + below
    return total


def _limbs(secret: NDArray[np.int64]) -> list[Floats]:
    """Return the balanced digits of the coefficients in base 2^12, lowest first; as many as the largest needs."""
    limbs: list[Floats] = []
    rest = secret.astype(np.float64)
    while not limbs or rest.any():
        above = np.rint(rest * (1 / _LIMB))
        limbs.append(rest - above * _LIMB)
        rest = above
    return limbs


def _transform(values: Floats) -> NDArray[np.complex128]:
    """Return the twisted FFT of polynomials modulo X^N + 1, float64 (..., N) -> complex128 (..., N/2)."""
    half = values.shape[-1] // 2
    folded = np.empty((*values.shape[:-1], half), np.complex128)
    folded.real, folded.imag = values[..., :half], values[..., half:]
    folded *= _twist(half)
    return np.fft.fft(folded)


def _back(transformed: NDArray[np.complex128]) -> Floats:
    """Return the polynomials of transforms, rounded to whole numbers: the inverse of `_transform`."""
    folded = np.fft.ifft(transformed)
    folded *= _twist(folded.shape[-1]).conj()
    values: Floats = np.concatenate([folded.real, folded.imag], axis=-1)
    return np.rint(values, out=values)


@lru_cache(maxsize=8)
def _twist(half: int) -> NDArray[np.complex128]:
    """Return exp(i pi k / (2 half)) for k from 0 to half - 1."""
    powers: NDArray[Any] = np.exp(1j * np.pi * np.arange(half) / (2 * half))
    powers.setflags(write=False)
    return powers


@cache
def gaussian_table() -> tuple[int, ...]:
    """Return floor(2^63 * Pr[|X| <= k]) for k = 0, 1, ... up to the last entry below 2^63 - 1.

    Pr[X = x] is proportional to exp(-x^2 / (2 SIGMA^2)), computed with 60 digits.
    """
    with localcontext() as context:
        context.prec = 60
        width = 2 * Decimal(str(SIGMA)) ** 2
        return cumulative_table(
            (1 if x == 0 else 2) * (-(Decimal(x) ** 2) / width).exp() for x in range(40 * int(SIGMA))
        )


def gaussian(count: int, random: Randomness) -> NDArray[np.int64]:
    """Return `count` samples of the discrete Gaussian of deviation `SIGMA`, int64; takes 8 bytes each of `random`."""
    return symmetric_samples(count, gaussian_table(), random)


def uniform_residues(count: int, prime: int, random: Randomness) -> NDArray[np.uint32]:
    """Return `count` uniform residues modulo a prime of 32 bits: words of 32 bits, those beyond it drawn again."""
    words = np.frombuffer(random(4 * count), "<u4").astype(np.uint32)
    beyond = np.flatnonzero(words >= prime)
    while beyond.size:
        words[beyond] = np.frombuffer(random(4 * beyond.size), "<u4")
        beyond = beyond[words[beyond] >= prime]
    return words
