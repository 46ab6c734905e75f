"""Folding one-shot contributions: planes of residues added modulo each prime, and the mask taken off the sum.

Two residues at a time are added as one word of 64 bits, and the upper ones once more: the lower sums follow from the
two totals modulo 2^64. Nothing is reduced before the end of a batch, since a million residues stay below 2^52.
"""

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
from protocols.sums.masked.packing import pack, ring_dtype, unpack
from protocols.sums.oneshot.packing import unpacked_sum
from protocols.sums.oneshot.plan import COUNT_BYTES, OneshotPlan
from protocols.sums.oneshot.polynomials import add_products, canonical, public_polynomials
from protocols.sums.segments import decode_sum

__all__ = ["check_contribution", "correct", "fold_contributions", "merge_partials", "open_sum", "release_sum"]

_COUNT: Final = struct.Struct("<Q")
_PIECE: Final = 8192
"""Words of 64 bits at a time, so that contribution and sums stay in the processor's cache."""
_WORD: Final = np.uint64(32)
_MASK: Final = np.uint64(2**32 - 1)


def check_contribution(plan: OneshotPlan, route: Route, body: Buffer) -> None:
    """Raise `ContributionError` unless the length is exact and every residue is below its prime."""
    expected, view = plan.contribution_bytes(route), memoryview(body)
    if view.nbytes != expected:
        raise ContributionError(f"a contribution along this route is {expected} bytes, got {view.nbytes}")
    for number, (plane, prime) in enumerate(zip(_residues(plan, view), plan.ring.primes, strict=True)):
        if int(plane.max()) >= prime:
            raise ContributionError(f"plane {number} holds a residue that is not below its prime")


def fold_contributions(
    plan: OneshotPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]
) -> bytes:
    """Return the partial sum plus contributions; see `protocols.sums.base.Mechanism.fold`."""
    total = _Accumulator(plan)
    if partial is not None:
        total.add_partial(partial)
    for route, contribution in contributions:
        total.count += 1
        total.check_count()
        total.add(exact(contribution, plan.contribution_bytes(route), "a contribution along this route"))
    return total.partial()


def merge_partials(plan: OneshotPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums; see `protocols.sums.base.Mechanism.merge`."""
    total = _Accumulator(plan)
    for partial in partials:
        total.add_partial(partial)
        total.check_count()
    return total.partial()


class _Accumulator:
    """Sums of residues that are not reduced yet, and the number of contributions."""

    def __init__(self, plan: OneshotPlan) -> None:
        self.count = 0
        self._plan = plan
        words = -(-len(plan.ring.primes) * plan.coefficients // 2)
        self._whole, self._upper = np.zeros(words, np.uint64), np.zeros(words, np.uint64)
        self._shifted = np.empty(_PIECE, np.uint64)

    def add(self, body: memoryview) -> None:
        """Add the residues of a contribution, 4 bytes each."""
        even = body.nbytes // 8
        words = np.frombuffer(body, "<u8", even)
        self._add_words(words, 0)
        if body.nbytes % 8:
            self._whole[even] += np.frombuffer(body, "<u4", 1, 8 * even)[0]

    def _add_words(self, words: NDArray[np.uint64], first: int) -> None:
        for start in range(first, words.size, _PIECE):
            piece = words[start : start + _PIECE]
            whole, upper = self._whole[start : start + piece.size], self._upper[start : start + piece.size]
            shifted = self._shifted[: piece.size]
            np.add(whole, piece, out=whole)
            np.right_shift(piece, _WORD, out=shifted)
            np.add(upper, shifted, out=upper)

    def add_partial(self, partial: Buffer) -> None:
        """Add a partial sum."""
        view = exact(partial, self._plan.partial_bytes, "a partial sum")
        self.count += _COUNT.unpack_from(view)[0]
        self.add(view[COUNT_BYTES:])

    def check_count(self) -> None:
        """Raise `BudgetError` if there are more contributions than planned."""
        if self.count > self._plan.max_contributions:
            raise BudgetError(f"the plan allows {self._plan.max_contributions} contributions, and this is one more")

    def partial(self) -> bytes:
        """Return the count and the sums, reduced."""
        primes, length = self._plan.ring.primes, self._plan.coefficients
        sums = np.empty((self._whole.size, 2), np.uint64)
        sums[:, 0], sums[:, 1] = self._whole - (self._upper << _WORD), self._upper
        planes = sums.reshape(-1)[: len(primes) * length].reshape(len(primes), length)
        planes %= np.array(primes, np.uint64)[:, None]
        return _COUNT.pack(self.count) + planes.astype("<u4").tobytes()


def correct(plan: OneshotPlan, partial: Buffer, binding: bytes, secret: NDArray[np.int64]) -> bytes:
    """Return the partial sum without its masks, A_j * secret for the round's public polynomials.

    binding: `OneshotContext.binding`. secret: the sum of the secrets, int64 (N,). Raises `ParameterError` for another
    shape.
    """
    ring = plan.ring
    if secret.shape != (ring.degree,) or secret.dtype != np.int64:
        raise ParameterError(f"a sum of secrets is int64 ({ring.degree},), got {secret.dtype} {secret.shape}")
    view = exact(partial, plan.partial_bytes, "a partial sum")
    sums = _residues(plan, view[COUNT_BYTES:]).astype(np.float64)
    public = public_polynomials(binding, ring.degree, ring.primes, plan.polynomials)
    add_products(sums, public, -secret, ring.primes)
    planes = [canonical(plane, prime) for plane, prime in zip(sums, ring.primes, strict=True)]
    return bytes(view[:COUNT_BYTES]) + b"".join(plane.astype("<u4").tobytes() for plane in planes)


def release_sum(plan: OneshotPlan, partial: Buffer) -> bytes:
    """Return the sums of a partial sum without masks, packed to `bits` bits each.

    Raises `CodecError` unless its errors are those of its number of contributions: a wrong sum is never released.
    """
    view = exact(partial, plan.partial_bytes, "a partial sum")
    (count,) = _COUNT.unpack_from(view)
    sums = unpacked_sum(plan.ring, _residues(plan, view[COUNT_BYTES:]), plan.layout.length, count)
    elements = sums.view(np.uint64) & np.uint64((1 << plan.bits) - 1)
    return pack(elements.astype(ring_dtype(plan.bits)), plan.bits)


def open_sum(plan: OneshotPlan, aggregate: Buffer, contributions: int) -> NDArray[np.float64]:
    """Return the sum, float64 (layout.length,).

    Raises `CodecError` for another length, and for a value beyond the bound of a sum of so many contributions.
    """
    return decode_sum(plan.layout, plan.places, unpack(aggregate, plan.bits, plan.layout.length), contributions)


def _residues(plan: OneshotPlan, body: Buffer) -> NDArray[np.uint32]:
    """Return a view of the planes, (primes, m)."""
    return np.frombuffer(body, "<u4").reshape(len(plan.ring.primes), plan.coefficients)
