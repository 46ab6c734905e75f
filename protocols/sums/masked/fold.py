"""Folding masked contributions: addition of ring elements modulo 2^bits, one contribution at a time."""

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
from protocols.sums.masked.packing import GROUP, RAW_BITS, Ring, pack, packed_bytes, unpack
from protocols.sums.masked.plan import COUNT_BYTES, MaskedPlan
from protocols.sums.segments import decode_sum

__all__ = ["check_contribution", "correct", "fold_contributions", "merge_partials", "open_sum", "release_sum"]

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
    count, body, sums = _writable_copy(plan, partial)
    for route, contribution in contributions:
        count = _add_to_count(plan, count, 1)
        _add(plan, sums, exact(contribution, plan.contribution_bytes(route), "a contribution along this route"))
    return _encode_partial(plan, count, body, sums)


def merge_partials(plan: MaskedPlan, partials: Iterable[Buffer]) -> bytes:
    """Return the sum of partial sums; see `protocols.sums.base.Mechanism.merge`."""
    count, body, sums = _writable_copy(plan, None)
    for partial in partials:
        view = exact(partial, plan.partial_bytes, "a partial sum")
        count = _add_to_count(plan, count, *_COUNT.unpack_from(view))
        sums += _view(plan, view)
    return _encode_partial(plan, count, body, sums)


def _add_to_count(plan: MaskedPlan, count: int, more: int) -> int:
    count += more
    if count > plan.max_contributions:
        raise BudgetError(f"the plan allows {plan.max_contributions} contributions, and this is one more")
    return count


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
    count, body, sums = _writable_copy(plan, partial)
    sums += correction
    return _encode_partial(plan, count, body, sums)


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


def _writable_copy(plan: MaskedPlan, partial: Buffer | None) -> tuple[int, bytearray, Ring]:
    """Return the count, a new body, and the sums in it as a writable view."""
    if partial is None:
        body = bytearray(plan.partial_bytes)
    else:
        body = bytearray(exact(partial, plan.partial_bytes, "a partial sum"))
    (count,) = _COUNT.unpack_from(body)
    return count, body, _view(plan, body)


def _view(plan: MaskedPlan, body: Buffer) -> Ring:
    return np.frombuffer(body, plan.dtype.newbyteorder("<"), offset=COUNT_BYTES)


def _add(plan: MaskedPlan, sums: Ring, contribution: memoryview) -> None:
    """Add a contribution to `sums`: raw elements directly, packed elements unpacked piece by piece."""
    piece = sums.size if plan.bits in RAW_BITS else _PIECE
    for first in range(0, sums.size, piece):
        part = sums[first : first + piece]
        start = first * plan.bits // 8
        part += unpack(contribution[start : start + packed_bytes(part.size, plan.bits)], plan.bits, part.size)


def _encode_partial(plan: MaskedPlan, count: int, body: bytearray, sums: Ring) -> bytes:
    if plan.bits not in RAW_BITS:
        sums &= sums.dtype.type((1 << plan.bits) - 1)
    _COUNT.pack_into(body, 0, count)
    return bytes(body)
