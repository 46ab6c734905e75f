"""Whole steps in the coefficients of a contribution, and out of those of a sum.

Coefficient j holds M_j = sum over i < per of v_(i m' + j) 2^(b i), with m' = ceil(values / per), and T e_j above it.
The coefficients behind the first m' hold M = 0. Values are signed, and only the SUM must fit b bits: what single
contributions carry over cancels in the sum, because all of it is linear modulo q.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from protocols.errors import CodecError
from protocols.sums.oneshot.parameters import SIGMA
from protocols.sums.oneshot.polynomials import Ring, bound_of_sum, canonical, reduced

_HALF: Final = 65536.0
_WORD: Final = np.uint64(32)
_MASK: Final = np.uint64(2**32 - 1)
_TAIL_EXPONENT: Final = 40.0
"""A sum of squares beyond its bound has a probability below exp(-40)."""


def packed_residues(
    ring: Ring, steps: NDArray[np.int64], errors: NDArray[np.int64], masks: NDArray[np.float64]
) -> NDArray[np.uint32]:
    """Return M + T e + masks modulo each prime, uint32 (primes, m).

    steps: int64 (values,), of size at most 2^53. errors: int64 (m,), below 2^16 in size. masks: float64 (primes, m),
    whole numbers of size below 2^49.
    """
    rows = -(-steps.size // ring.per)
    grid = np.zeros((ring.per, rows), np.int64)
    grid.reshape(-1)[: steps.size] = steps
    noise, residues = errors.astype(np.float64), np.empty(masks.shape, np.uint32)
    for number, prime in enumerate(ring.primes):
        low = masks[number] + noise * _centred(1 << ring.message_bits, prime)
        high = np.zeros(rows)
        for place, row in enumerate(grid):
            values, weight = _remainders(row, prime), _centred(1 << ring.bits * place, prime)
            above = np.rint(weight / _HALF)
            high += values * above
            low[:rows] += values * (weight - above * _HALF)
        low[:rows] += reduced(high, prime) * _HALF  # below 2^47 + 2^50 + 2^49 in size: exact
        residues[number] = canonical(low, prime)
    return residues


def _remainders(steps: NDArray[np.int64], prime: int) -> NDArray[np.float64]:
    """Return steps of size at most 2^53 modulo the prime, of size at most prime / 2 + 2, without a division."""
    above = (steps >> 26).astype(np.float64) * 2.0**24  # at most 2^51
    return reduced(reduced(above, prime) * 4.0 + (steps & (2**26 - 1)).astype(np.float64), prime)


def _centred(number: int, prime: int) -> float:
    rest = number % prime
    return float(rest - prime if rest > prime // 2 else rest)


class UnpackedSum:
    """The sums of the steps, unpacked from consecutive blocks of coefficients: memory is that of `values` numbers.

    dtype: int64, or an unsigned type of `bits` bits or more, for the sums modulo 2^bits.
    """

    def __init__(self, ring: Ring, values: int, dtype: DTypeLike) -> None:
        self._ring, self._values, self._rows = ring, values, -(-values // ring.per)
        self._sums = np.zeros((ring.per, self._rows), dtype)
        self._keep = np.uint64((1 << ring.bits) - 1)
        self._done, self._largest, self._squares, self._zeros = 0, 0, 0.0, True

    def add(self, residues: NDArray[np.uint32]) -> None:
        """Unpack the next coefficients, uint32 (primes, k), of the unmasked sum."""
        errors, grid = _split(self._ring, residues)
        self._largest = max(self._largest, int(np.abs(errors).max()))
        self._squares += float(np.square(errors.astype(np.float64)).sum())
        here = self._sums[:, self._done : self._done + residues.shape[1]]
        self._zeros = self._zeros and not grid[:, here.shape[1] :].any()
        steps = grid[:, : here.shape[1]]
        here[:] = steps if here.dtype == np.int64 else (steps.view(np.uint64) & self._keep).astype(here.dtype)
        self._done += residues.shape[1]

    def finish(self, contributions: int) -> NDArray[Any]:
        """Return the sums of the steps (values,), of size up to 2^(bits - 1) if signed.

        Raises `CodecError` unless the errors are those of so many contributions and the zeros behind the values are
        zeros: otherwise the sum of the secrets or a contribution is wrong, and nothing may be released.
        """
        _check_noise(self._largest, self._squares, self._done, contributions, "error")
        sums = self._sums.reshape(-1)
        if sums[self._values :].any() or not self._zeros:
            raise CodecError("the unmasked sum does not end with zeros: the sum of secrets or a contribution is wrong")
        return sums[: self._values]


def _split(ring: Ring, residues: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the errors, int64 (k,), and the steps, int64 (per, k), of the coefficients of a sum."""
    middle = 1 << ring.bits - 1
    shift = (ring.error_room + 1 << ring.message_bits) + sum(middle << ring.bits * place for place in range(ring.per))
    limbs = _limbs(ring, [(plane + np.uint64(shift % p)) % np.uint64(p) for plane, p in _planes(ring, residues)])
    errors = _field(limbs, ring.message_bits, 32 * len(ring.primes) - ring.message_bits)
    grid = np.stack([_field(limbs, ring.bits * place, ring.bits) for place in range(ring.per)]).astype(np.int64)
    grid -= middle
    return (errors - np.uint64(ring.error_room + 1)).view(np.int64), grid


def check_noise(sums: NDArray[np.int64], contributions: int, what: str) -> None:
    """Raise `CodecError` unless `sums` may be sums of `contributions` Gaussian coefficients each.

    Checks the largest size, and the sum of squares by Laurent and Massart, "Adaptive estimation of a quadratic
    functional" (Ann. Statist. 2000), lemma 1. Honest sums fail with a probability below 2^-50.
    """
    squares = float(np.square(sums.astype(np.float64)).sum())
    _check_noise(int(np.abs(sums).max()), squares, sums.size, contributions, what)


def _check_noise(largest: int, squares: float, count: int, contributions: int, what: str) -> None:
    """Do what `check_noise` does, for `count` sums with this largest size and sum of squares."""
    excess = 2 * sqrt(count * _TAIL_EXPONENT) + 2 * _TAIL_EXPONENT
    most = ceil(contributions * SIGMA**2 * (count + excess))
    if largest > bound_of_sum(contributions) or squares > most:
        raise CodecError(
            f"the {what} sums are larger than {contributions} contributions allow: a share or a contribution is wrong"
        )


def _planes(ring: Ring, residues: NDArray[np.uint32]) -> list[tuple[NDArray[np.uint64], int]]:
    return [(plane.astype(np.uint64), prime) for plane, prime in zip(residues, ring.primes, strict=True)]


def _limbs(ring: Ring, residues: list[NDArray[np.uint64]]) -> list[NDArray[np.uint64]]:
    """Return the numbers below q with these residues, as limbs of 32 bits, lowest first (Garner, 1959)."""
    digits: list[NDArray[np.uint64]] = []
    for place, prime in enumerate(ring.primes):
        rest, modulus = residues[place], np.uint64(prime)
        for earlier, digit in zip(ring.primes, digits, strict=False):
            rest = (rest + modulus - digit % modulus) % modulus * np.uint64(pow(earlier, -1, prime)) % modulus
        digits.append(rest)
    limbs = [digits[-1]]
    for prime, digit in zip(ring.primes[-2::-1], digits[-2::-1], strict=True):
        carry = digit
        for place, limb in enumerate(limbs):
            total = limb * np.uint64(prime) + carry
            limbs[place], carry = total & _MASK, total >> _WORD
        limbs.append(carry)
    return limbs


def _field(limbs: list[NDArray[np.uint64]], start: int, width: int) -> NDArray[np.uint64]:
    """Return bits `start` to `start + width` (at most 64) of numbers in limbs of 32 bits."""
    field = np.zeros(limbs[0].shape, np.uint64)
    for place in range(start // 32, -(-(start + width) // 32)):
        offset = 32 * place - start
        field |= limbs[place] << np.uint64(offset) if offset >= 0 else limbs[place] >> np.uint64(-offset)
    return field & np.uint64((1 << width) - 1)
