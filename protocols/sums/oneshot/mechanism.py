"""The one-shot mechanism: whole steps in the coefficients of a contribution, sums of these, and the steps of a sum.

*Packing.* Coefficient j holds M_j = sum over i < per of v_(i m' + j) 2^(b i), with m' = ceil(values / per), and T e_j
above it. The coefficients behind the first m' hold M = 0. Values are signed, and only the SUM must fit b bits: what
single contributions carry over cancels in the sum, because all of it is linear modulo q.

*Sums.* Planes of residues are added modulo each prime. A client needs the committee's keys of the round: it contributes
through `protocols.sums.oneshot.client`, and `protocols.sums.oneshot.server.unmask` takes the masks off the folded sum
(`release_unmasked`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, sqrt
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ContributionError, ParameterError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import Buffer, ChecksByParts, SumPlan
from protocols.sums.oneshot.plan import OneshotPlan, make_plan
from protocols.sums.oneshot.polynomials import (
    SIGMA,
    Ring,
    add_products,
    bound_of_sum,
    canonical,
    polynomial_blocks,
    reduced,
)
from protocols.sums.ring import RingMechanism, RingPlan
from protocols.sums.wire import PartialSum, pack, read_count, ring_dtype

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
    planes = zip(residues.astype(np.uint64), ring.primes, strict=True)
    limbs = _limbs(ring, [(plane + np.uint64(shift % prime)) % np.uint64(prime) for plane, prime in planes])
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


_PIECE: Final = 32 * 1024
"""Residues added at a time, so that contribution and sums stay in the processor's cache."""
_BLOCK: Final = 1 << 17
"""Coefficients unmasked at a time, so that temporary arrays stay small beside a long vector."""


class OneshotMechanism(RingMechanism, ChecksByParts):
    """Sums under ring-LWE masks, which a committee takes off the sum of a whole set of survivors at once."""

    name: ClassVar[str] = "oneshot"
    plan_class: ClassVar[type[RingPlan]] = OneshotPlan

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> OneshotPlan:
        return make_plan(parameters, layout, max_contributions)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and every residue is below its prime."""
        self.check_part(plan, route, 0, OneshotPlan.of(plan).require_length(route, body))

    def check_part(self, plan: SumPlan, route: Route, start: int, part: Buffer) -> None:
        own = OneshotPlan.of(plan)
        residues, length = np.frombuffer(part, "<u4"), own.coefficients
        for number, prime in enumerate(own.ring.primes):
            first = number * length - start // 4
            plane = residues[max(first, 0) : max(first + length, 0)]
            if plane.size and int(plane.max()) >= prime:
                raise ContributionError(f"plane {number} holds a residue that is not below its prime")

    def _added(self, plan: RingPlan, partials: Iterable[Buffer], more: Iterable[tuple[Route, Buffer]] = ()) -> bytes:
        own = OneshotPlan.of(plan)
        total = _total(own, partials)
        for route, contribution in more:
            total.count_more(1)
            body = exact(contribution, own.contribution_bytes(route), "a contribution along this route")
            _add(own, total.sums, np.frombuffer(body, "<u4"))
        return total.encode()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the sums of a partial sum without masks as packed ring elements; with groups each after its count.

        Raises `CodecError` for a sum that is not exactly that of its count: a wrong sum is never released.
        """
        own = OneshotPlan.of(plan)
        if own.groups > 1:
            return self._released_groups(own, partial, lambda part: self.release(own.of_group, part))
        count, body = read_count(own, partial)
        sums = UnpackedSum(own.ring, own.layout.length, ring_dtype(own.bits))
        sums.add(_planes(own, np.frombuffer(body, "<u4")))
        return pack(sums.finish(count), own.bits)


def release_unmasked(plan: OneshotPlan, partial: Buffer, binding: bytes, secret: NDArray[np.int64]) -> bytes:
    """Return the aggregate of a masked partial sum: what `release` returns without the masks A_j * secret.

    binding: `OneshotContext.binding`, from which the public polynomials A_j follow. secret: the sum of the secrets,
    int64 (N,). The masks are removed block by block, so that memory is that of the aggregate and its elements. Raises
    `ParameterError` for a secret of another shape, `CodecError` as `release` does.
    """
    ring = plan.ring
    if secret.shape != (ring.degree,) or secret.dtype != np.int64:
        raise ParameterError(f"a sum of secrets is int64 ({ring.degree},), got {secret.dtype} {secret.shape}")
    count, body = read_count(plan, partial)
    folded = _planes(plan, np.frombuffer(body, "<u4"))
    sums = UnpackedSum(ring, plan.layout.length, ring_dtype(plan.bits))
    at_once = max(1, _BLOCK // ring.degree)
    blocks = polynomial_blocks(binding, ring.degree, ring.primes, plan.polynomials, at_once)
    for number, public in enumerate(blocks):
        start = number * at_once * ring.degree
        part = folded[:, start : start + at_once * ring.degree].astype(np.float64)
        add_products(part, public, -secret, ring.primes)
        sums.add(np.stack([canonical(plane, prime) for plane, prime in zip(part, ring.primes, strict=True)]))
    return pack(sums.finish(count), plan.bits)


def _total(plan: OneshotPlan, partials: Iterable[Buffer]) -> PartialSum[np.uint32]:
    total = PartialSum(plan, np.dtype(np.uint32))
    for partial in partials:
        _add(plan, total.sums, total.take(partial))
    return total


def _planes(plan: OneshotPlan, residues: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a view (primes, coefficients)."""
    return residues.reshape(len(plan.ring.primes), plan.coefficients)


def _add(plan: OneshotPlan, sums: NDArray[np.uint32], residues: NDArray[np.uint32]) -> None:
    """Add residues to `sums` in place, modulo each prime."""
    for plane, more, prime in zip(_planes(plan, sums), _planes(plan, residues), plan.ring.primes, strict=True):
        _add_residues(plane, more, np.uint32(prime))


def _add_residues(sums: NDArray[np.uint32], residues: NDArray[np.uint32], prime: np.uint32) -> None:
    """Add residues below the prime to sums below the prime, in place: both in words of 32 bits, without a division.

    a + b modulo p is a - (p - b), plus p where that is negative; words wrap around.
    """
    missing, short = np.empty(min(_PIECE, sums.size), np.uint32), np.empty(min(_PIECE, sums.size), np.bool_)
    for start in range(0, sums.size, _PIECE):
        total, piece = sums[start : start + _PIECE], residues[start : start + _PIECE]
        rest, negative = missing[: piece.size], short[: piece.size]
        np.subtract(prime, piece, out=rest)
        np.less(total, rest, out=negative)
        np.subtract(total, rest, out=total)
        np.multiply(negative, prime, out=rest)
        np.add(total, rest, out=total)


ONESHOT: Final = OneshotMechanism()
"""The mechanism; stateless."""
