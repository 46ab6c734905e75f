"""Folding one-shot contributions: planes of residues added modulo each prime, and the mask taken off the sum."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import BudgetError, ContributionError, ParameterError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.draft import Draft
from protocols.sums.masked.packing import pack, ring_dtype, unpack, unpack_part
from protocols.sums.oneshot.packing import UnpackedSum, unpacked_sum
from protocols.sums.oneshot.plan import COUNT_BYTES, OneshotPlan
from protocols.sums.oneshot.polynomials import add_products, canonical, polynomial_blocks, public_polynomials
from protocols.sums.segments import decode_part, decode_sum

__all__ = [
    "check_contribution",
    "check_part",
    "correct",
    "fold_contributions",
    "merge_partials",
    "open_part",
    "open_sum",
    "release_sum",
    "release_unmasked",
]

_COUNT: Final = struct.Struct("<Q")
_PIECE: Final = 32 * 1024
"""Residues added at a time, so that contribution and sums stay in the processor's cache."""
_BLOCK: Final = 1 << 17
"""Coefficients unmasked at a time, so that temporary arrays stay small beside a long vector."""


def check_contribution(plan: OneshotPlan, route: Route, body: Buffer) -> None:
    """Raise `ContributionError` unless the length is exact and every residue is below its prime."""
    expected, view = plan.contribution_bytes(route), memoryview(body)
    if view.nbytes != expected:
        raise ContributionError(f"a contribution along this route is {expected} bytes, got {view.nbytes}")
    check_part(plan, 0, view)


def check_part(plan: OneshotPlan, start: int, part: Buffer) -> None:
    """Raise `ContributionError` unless every residue in these bytes of a contribution, from `start` on, is valid."""
    residues, length = np.frombuffer(part, "<u4"), plan.coefficients
    for number, prime in enumerate(plan.ring.primes):
        first = number * length - start // 4
        plane = residues[max(first, 0) : max(first + length, 0)]
        if plane.size and int(plane.max()) >= prime:
            raise ContributionError(f"plane {number} holds a residue that is not below its prime")


def fold_contributions(
    plan: OneshotPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]
) -> bytes:
    """Return the partial sum plus contributions; see `protocols.sums.base.Mechanism.fold`."""
    total = _Total(plan)
    if partial is not None:
        total.add_partial(partial)
    for route, contribution in contributions:
        total.count += 1
        total.check_count()
        total.add(exact(contribution, plan.contribution_bytes(route), "a contribution along this route"))
    return total.encode()


def merge_partials(plan: OneshotPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums; see `protocols.sums.base.Mechanism.merge`."""
    total = _Total(plan)
    for partial in partials:
        total.add_partial(partial)
        total.check_count()
    return total.encode()


class _Total:
    """A partial sum that is being computed, in the memory of the body that it becomes."""

    def __init__(self, plan: OneshotPlan) -> None:
        self.count = 0
        self._plan, self._draft = plan, Draft(plan.partial_bytes)

    def add(self, body: memoryview) -> None:
        """Add the residues of a contribution, 4 bytes each."""
        into = _residues(self._plan, self._draft.body[COUNT_BYTES:])
        for sums, residues, prime in zip(into, _residues(self._plan, body), self._plan.ring.primes, strict=True):
            _add_residues(sums, residues, np.uint32(prime))

    def add_partial(self, partial: Buffer) -> None:
        """Add a partial sum."""
        view = exact(partial, self._plan.partial_bytes, "a partial sum")
        self.count += _COUNT.unpack_from(view)[0]
        self.add(view[COUNT_BYTES:])

    def check_count(self) -> None:
        """Raise `BudgetError` if there are more contributions than planned."""
        if self.count > self._plan.max_contributions:
            raise BudgetError(f"the plan allows {self._plan.max_contributions} contributions, and this is one more")

    def encode(self) -> bytes:
        """Return the partial sum."""
        _COUNT.pack_into(self._draft.body, 0, self.count)
        return self._draft.finish()


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


def correct(plan: OneshotPlan, partial: Buffer, binding: bytes, secret: NDArray[np.int64]) -> bytes:
    """Return the partial sum without its masks, A_j * secret for the round's public polynomials.

    binding: `OneshotContext.binding`. secret: the sum of the secrets, int64 (N,). Raises `ParameterError` for another
    shape.
    """
    ring = plan.ring
    _check_secret(plan, secret)
    view = exact(partial, plan.partial_bytes, "a partial sum")
    sums = _residues(plan, view[COUNT_BYTES:]).astype(np.float64)
    public = public_polynomials(binding, ring.degree, ring.primes, plan.polynomials)
    add_products(sums, public, -secret, ring.primes)
    planes = [canonical(plane, prime) for plane, prime in zip(sums, ring.primes, strict=True)]
    return bytes(view[:COUNT_BYTES]) + b"".join(plane.astype("<u4").tobytes() for plane in planes)


def _check_secret(plan: OneshotPlan, secret: NDArray[np.int64]) -> None:
    degree = plan.ring.degree
    if secret.shape != (degree,) or secret.dtype != np.int64:
        raise ParameterError(f"a sum of secrets is int64 ({degree},), got {secret.dtype} {secret.shape}")


def release_sum(plan: OneshotPlan, partial: Buffer) -> bytes:
    """Return the sums of a partial sum without masks, packed to `bits` bits each.

    Raises `CodecError` unless its errors are those of its number of contributions: a wrong sum is never released.
    """
    view = exact(partial, plan.partial_bytes, "a partial sum")
    (count,) = _COUNT.unpack_from(view)
    sums = unpacked_sum(plan.ring, _residues(plan, view[COUNT_BYTES:]), plan.layout.length, count)
    elements = sums.view(np.uint64) & np.uint64((1 << plan.bits) - 1)
    return pack(elements.astype(ring_dtype(plan.bits)), plan.bits)


def release_unmasked(plan: OneshotPlan, partial: Buffer, binding: bytes, secret: NDArray[np.int64]) -> bytes:
    """Return `release_sum` of what `correct` returns, block by block: memory is that of the aggregate and its elements.

    Raises as both do.
    """
    ring, view = plan.ring, exact(partial, plan.partial_bytes, "a partial sum")
    _check_secret(plan, secret)
    (count,) = _COUNT.unpack_from(view)
    folded, sums = _residues(plan, view[COUNT_BYTES:]), UnpackedSum(ring, plan.layout.length, ring_dtype(plan.bits))
    at_once = max(1, _BLOCK // ring.degree)
    blocks = polynomial_blocks(binding, ring.degree, ring.primes, plan.polynomials, at_once)
    for number, public in enumerate(blocks):
        start = number * at_once * ring.degree
        part = folded[:, start : start + at_once * ring.degree].astype(np.float64)
        add_products(part, public, -secret, ring.primes)
        sums.add(np.stack([canonical(plane, prime) for plane, prime in zip(part, ring.primes, strict=True)]))
    return pack(sums.finish(count), plan.bits)


def open_part(plan: OneshotPlan, aggregate: Buffer, contributions: int, start: int, stop: int) -> NDArray[np.float64]:
    """Return values `start` to `stop` of the sum, float64. Raises as `open_sum` does, for these values."""
    elements = unpack_part(aggregate, plan.bits, plan.layout.length, start, stop)
    return decode_part(plan.layout, plan.places, elements, contributions, start)


def open_sum(plan: OneshotPlan, aggregate: Buffer, contributions: int) -> NDArray[np.float64]:
    """Return the sum, float64 (layout.length,).

    Raises `CodecError` for another length, and for a value beyond the bound of a sum of so many contributions.
    """
    return decode_sum(plan.layout, plan.places, unpack(aggregate, plan.bits, plan.layout.length), contributions)


def _residues(plan: OneshotPlan, body: Buffer) -> NDArray[np.uint32]:
    """Return a view of the planes, (primes, m)."""
    return np.frombuffer(body, "<u4").reshape(len(plan.ring.primes), plan.coefficients)
