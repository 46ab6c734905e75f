"""Arithmetic in R_q = Z_q[X] / (X^N + 1): public polynomials from a seed, and their products with small secrets.

A product modulo X^N + 1 is a complex product modulo X^(N/2) - i (the halves of a polynomial become real and imaginary
parts), which a twist by powers of exp(i pi / N) makes cyclic, so that FFTs of length N/2 compute it. Results are exact:
factors are split so that the rounding error of the FFTs is proven to stay below 1/2 (Percival, "Rapid multiplication
modulo the sum and difference of highly composite numbers", Math. Comp. 2003, theorem 5.1):

    error <= |x| |y| ((1 + u)^(3n) (1 + u sqrt 5)^(3n+1) (1 + b)^(3n) - 1) < |x| |y| 2^-44

for n = log2(N/2) + 1 <= 13 levels, the twist being one, u = 2^-53 and roots of unity with an error b <= 4 u. Residues
are split into halves of 16 bits, of size at most 2^15, and secrets into limbs of size at most 2^11. So |x| |y| is at
most 2^15 2^11 N <= 2^39, and the error is below 2^-5. All arithmetic is on whole arrays of float64, which holds
integers up to 2^53, without a branch on values.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from numpy.typing import NDArray

from protocols.crypto.domain import domain_tag

__all__ = ["add_products", "canonical", "polynomial_blocks", "public_polynomials", "reduced"]

Floats = NDArray[np.float64]

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
    whole = np.empty((len(primes), polynomials * degree), np.uint32)
    for number, prime in enumerate(primes):
        stream = hashlib.shake_128(domain_tag("oneshot polynomials", binding, number))
        count, spare = whole.shape[1], _SPARE_WORDS
        kept = np.empty(0, np.uint32)
        while kept.size < count:
            words = np.frombuffer(stream.digest(4 * (count + spare)), "<u4")
            kept, spare = words[words < prime], 2 * spare
        whole[number] = kept[:count]
    return whole.reshape(len(primes), polynomials, degree)


def polynomial_blocks(
    binding: bytes, degree: int, primes: tuple[int, ...], polynomials: int, at_once: int
) -> Iterator[NDArray[np.uint32]]:
    """Yield what `public_polynomials` returns, `at_once` polynomials at a time: uint32 (primes, up to at_once, degree).

    Memory is that of a block, where the installed `cryptography` can read SHAKE128 bit by bit (its version 46, with
    OpenSSL 3.3), else that of all polynomials.
    """
    edges = [*range(0, polynomials, at_once), polynomials]
    try:
        streams = [_Residues(binding, number, prime) for number, prime in enumerate(primes)]
    except (AttributeError, UnsupportedAlgorithm):
        whole = public_polynomials(binding, degree, primes, polynomials)
        yield from (whole[:, first:last] for first, last in pairwise(edges))
        return
    for first, last in pairwise(edges):
        taken = [stream.take((last - first) * degree) for stream in streams]
        yield np.stack(taken).reshape(len(primes), last - first, degree)


class _Residues:
    """The uniform residues of one prime, in their order; see `public_polynomials`."""

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
