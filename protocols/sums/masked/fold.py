"""Folding masked contributions: addition of ring elements modulo 2^bits, one contribution at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import BudgetError, ContributionError, ParameterError
from protocols.layout import Route
from protocols.sums.base import Buffer
from protocols.sums.draft import Draft
from protocols.sums.masked.packing import GROUP, RAW_BITS, Ring, pack, packed_bytes, unpack, unpack_part
from protocols.sums.masked.plan import COUNT_BYTES, MaskedPlan
from protocols.sums.segments import decode_part, decode_sum

__all__ = [
    "check_contribution",
    "correct",
    "correct_in_place",
    "fold_contributions",
    "merge_partials",
    "open_part",
    "open_sum",
    "release_sum",
]

T = TypeVar("T")

_COUNT: Final = struct.Struct("<Q")
_PIECE: Final = 1024 * GROUP
"""Elements unpacked and added at a time, for widths that are packed on the wire."""


def check_contribution(plan: MaskedPlan, route: Route, body: Buffer) -> None:
    """Raise `ContributionError` unless the length is exact and the unused bits are zero.

    Any ring elements are valid, since masked elements are uniform.
    """
    expected, view = plan.contribution_bytes(route), memoryview(body)
    if view.nbytes != expected:
        raise ContributionError(f"a contribution along this route is {expected} bytes, got {view.nbytes}")
    used = plan.layout.length * plan.bits % 8
    if used and view.cast("B")[-1] >> used:
        raise ContributionError("the unused bits of the last byte are not zero")


def fold_contributions(
    plan: MaskedPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]
) -> bytes:
    """Return the partial sum plus contributions; see `protocols.sums.base.Mechanism.fold`."""
    total = _Total(plan, partial)
    for route, contribution in contributions:
        total.count_more(1)
        body = exact(contribution, plan.contribution_bytes(route), "a contribution along this route")
        _add(plan, total.sums, body)
    return total.encode()


def merge_partials(plan: MaskedPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums; see `protocols.sums.base.Mechanism.merge`."""
    total = _Total(plan, None)
    for partial in partials:
        view = exact(partial, plan.partial_bytes, "a partial sum")
        total.count_more(*_COUNT.unpack_from(view))
        np.add(total.sums, _view(plan, view), out=total.sums)
    return total.encode()


class _Total:
    """A partial sum that is being computed, in the memory of the body that it becomes."""

    def __init__(self, plan: MaskedPlan, partial: Buffer | None) -> None:
        self._plan, self._draft = plan, Draft(plan.partial_bytes)
        if partial is not None:
            self._draft.body[:] = exact(partial, plan.partial_bytes, "a partial sum")
        (self._count,) = _COUNT.unpack_from(self._draft.body)

    @property
    def sums(self) -> Ring:
        """The elements, writable."""
        return _view(self._plan, self._draft.body)

    def count_more(self, more: int) -> None:
        """Count contributions; `BudgetError` if there are more than planned."""
        self._count += more
        if self._count > self._plan.max_contributions:
            raise BudgetError(f"the plan allows {self._plan.max_contributions} contributions, and this is one more")

    def encode(self) -> bytes:
        """Return the partial sum, its elements modulo 2^bits. Nothing may hold `sums` any more."""
        if self._plan.bits not in RAW_BITS:
            np.bitwise_and(self.sums, self._plan.dtype.type((1 << self._plan.bits) - 1), out=self.sums)
        _COUNT.pack_into(self._draft.body, 0, self._count)
        return self._draft.finish()


def correct(plan: MaskedPlan, partial: Buffer | None, correction: Ring) -> bytes:
    """Return the partial sum plus the correction of unmasking, `correction` (layout.length,) of the ring's dtype.

    partial: None gives the correction as a partial sum of no contributions, to be merged with others. Raises
    `ParameterError` for a correction of another shape or dtype.
    """
    if correction.dtype != plan.dtype or correction.shape != (plan.layout.length,):
        raise ParameterError(
            f"a correction must be {plan.layout.length} elements of {plan.dtype}, got {correction.shape} of "
            f"{correction.dtype}"
        )
    total = _Total(plan, partial)
    np.add(total.sums, correction, out=total.sums)
    return total.encode()


def correct_in_place(plan: MaskedPlan, partial: Buffer | None, add_to: Callable[[Ring], T]) -> tuple[bytes, T]:
    """Return the partial sum (None: empty) plus what `add_to` adds to its elements in place, and what that returns.

    It takes half the memory of `correct`: the correction is never a vector of its own.
    """
    total = _Total(plan, partial)
    found = add_to(total.sums)
    return total.encode(), found


def release_sum(plan: MaskedPlan, partial: Buffer) -> bytes:
    """Return the sums as packed ring elements, without the count."""
    sums = _view(plan, exact(partial, plan.partial_bytes, "a partial sum"))
    return pack(sums.astype(plan.dtype, copy=False), plan.bits)


def open_sum(plan: MaskedPlan, aggregate: Buffer, contributions: int) -> NDArray[np.float64]:
    """Return the sum, float64 (layout.length,).

    Raises `CodecError` for another length, and for a value beyond the bound of a sum of so many contributions, which
    shows that masks did not cancel.
    """
    elements = unpack(aggregate, plan.bits, plan.layout.length)
    return decode_sum(plan.layout, plan.places, elements, contributions)


def open_part(plan: MaskedPlan, aggregate: Buffer, contributions: int, start: int, stop: int) -> NDArray[np.float64]:
    """Return values `start` to `stop` of the sum, float64. Raises as `open_sum` does, for these values."""
    view = exact(aggregate, plan.aggregate_bytes, "an aggregate")
    elements = unpack_part(view, plan.bits, plan.layout.length, start, stop)
    return decode_part(plan.layout, plan.places, elements, contributions, start)


def _view(plan: MaskedPlan, body: Buffer) -> Ring:
    return np.frombuffer(body, plan.dtype.newbyteorder("<"), offset=COUNT_BYTES)


def _add(plan: MaskedPlan, sums: Ring, contribution: memoryview) -> None:
    """Add a contribution to `sums`: raw elements directly, packed elements unpacked piece by piece."""
    piece = sums.size if plan.bits in RAW_BITS else _PIECE
    for first in range(0, sums.size, piece):
        part = sums[first : first + piece]
        start = first * plan.bits // 8
        part += unpack(contribution[start : start + packed_bytes(part.size, plan.bits)], plan.bits, part.size)
