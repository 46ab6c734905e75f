"""Sums of fixed-point values whose ring is shared by all segments of a layout, each with a scale of its own.

Every segment has the finest power-of-two scale whose sums fit (`FixedPoint.widest`), by the segment's bound on the SUM,
which a recipe may prove to be far below contributions * clip. Counts have scale 1 and are exact. A layout does not fit
unless a ring step is at most the clip: with a coarser step, nothing but rounding error would remain of a value.

Rounding to nearest has an error of half a step per contribution. Scales are powers of two, so encoding and decoding add
no error. The rounding of float64 itself is included in the error bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import floor, log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import BudgetError, CodecError, ParameterError
from protocols.fixed_point import FixedPoint
from protocols.layout import Route, Segment, VectorLayout

__all__ = [
    "Places",
    "decode_part",
    "decode_sum",
    "encode_vector",
    "first_fault",
    "places_of",
    "segment_errors",
    "segment_scales",
]

Places = tuple[tuple[tuple[FixedPoint, slice], ...], ...]
"""The fixed point and the slice of every segment, by block of the aggregate."""

_SLACK: Final = 1.0 + 2.0**-22
"""Relative amount by which a value may exceed its clip, for float32 rounding of the clip itself."""

_EXACT: Final = 2.0**53


def places_of(bits: int, layout: VectorLayout, contributions: int) -> Places:
    """Return the places of a layout's segments in a ring of `bits` bits; `BudgetError` if a segment does not fit."""
    segments = [segment for block in layout.blocks for segment in block.segments]
    edges = accumulate((segment.length for segment in segments), initial=0)
    spans = iter([slice(start, end) for start, end in pairwise(edges)])
    return tuple(
        tuple((_ring(bits, segment, contributions), next(spans)) for segment in block.segments)
        for block in layout.blocks
    )


def segment_errors(layout: VectorLayout, places: Places, contributions: int) -> dict[str, float]:
    """Return the bound on the error by `block/segment`, in the segment's own unit; 0.0 for counts."""
    roundings = contributions / 2
    return {
        f"{block.name}/{segment.name}": 0.0
        if segment.integral
        else roundings / ring.scale + contributions * ring.bound / _EXACT
        for block, own in zip(layout.blocks, places, strict=True)
        for segment, (ring, _) in zip(block.segments, own, strict=True)
    }


def segment_scales(layout: VectorLayout, places: Places) -> dict[str, float]:
    """Return the ring steps per 1.0 by `block/segment`; 1.0 for counts."""
    return {
        f"{block.name}/{segment.name}": ring.scale
        for block, own in zip(layout.blocks, places, strict=True)
        for segment, (ring, _) in zip(block.segments, own, strict=True)
    }


def first_fault(bits: int, layout: VectorLayout, contributions: int) -> str | None:
    """Return why sums of this layout do not fit a ring of `bits` bits, for the first segment; None if they do."""
    for block in layout.blocks:
        for segment in block.segments:
            fault = _segment_fault(bits, segment, contributions)
            if fault is not None:
                return f"{block.name}/{segment.name}: {fault}"
    return None


def encode_vector(
    layout: VectorLayout,
    places: Places,
    route: Route,
    blocks: Sequence[NDArray[np.float64]],
    elements: NDArray[np.unsignedinteger[Any]],
) -> None:
    """Write the ring elements of a contribution along `route` into `elements` (layout.length,), which are zeros.

    blocks: one float64 vector per route entry. Raises `BudgetError` for a value that is not finite or exceeds its clip,
    `ParameterError` for other shapes and for counts that are not whole numbers.
    """
    layout_blocks = layout.contribution_blocks(route)
    if len(blocks) != len(layout_blocks):
        raise ParameterError(f"the route has {len(layout_blocks)} blocks, {len(blocks)} were given")
    for targets, block, values in zip(route, layout_blocks, blocks, strict=True):
        if values.shape != (block.length,):
            raise ParameterError(f"block {block.name!r} needs {block.length} values, got shape {values.shape}")
        parts = tuple(block.split(values).values())
        for segment, part in zip(block.segments, parts, strict=True):
            _check_values(block.name, segment, part)
        for target in targets:
            for segment, part, (ring, span) in zip(block.segments, parts, places[target], strict=True):
                ring.encode_into(elements[span], part, segment.clip)


def decode_sum(
    layout: VectorLayout, places: Places, elements: NDArray[np.unsignedinteger[Any]], contributions: int
) -> NDArray[np.float64]:
    """Return the sum that ring elements (layout.length,) stand for, float64 (layout.length,).

    Raises `CodecError` for a value beyond the bound of a sum of so many contributions, which shows that masks did not
    cancel.
    """
    return decode_part(layout, places, elements, contributions, 0)


def decode_part(
    layout: VectorLayout,
    places: Places,
    elements: NDArray[np.unsignedinteger[Any]],
    contributions: int,
    start: int,
) -> NDArray[np.float64]:
    """Return the part of the sum from place `start` on that `elements` stand for, float64 of their shape.

    Raises `CodecError` as `decode_sum` does.
    """
    total = np.empty(elements.size)
    for block, own in zip(layout.blocks, places, strict=True):
        if own[-1][1].stop <= start or own[0][1].start >= start + elements.size:
            continue
        for segment, (ring, span) in zip(block.segments, own, strict=True):
            part = slice(max(span.start - start, 0), min(span.stop - start, elements.size))
            if part.start >= part.stop:
                continue
            total[part] = ring.decode(elements[part])
            bound = segment.bound_on_sum(contributions) + (0.0 if segment.integral else contributions / 2 / ring.scale)
            if max(total[part].max(), -total[part].min()) > bound * (1.0 + 2.0**-40):
                raise CodecError(
                    f"{block.name}/{segment.name} holds a value beyond the bound of a sum of {contributions} "
                    "contributions"
                )
    return total


def _check_values(block: str, segment: Segment, values: NDArray[np.float64]) -> None:
    if not max(values.max(), -values.min()) <= segment.clip * _SLACK:
        raise BudgetError(f"block {block!r} holds a value that is not finite or exceeds its clip")
    if segment.integral and not (np.rint(values) == values).all():
        raise ParameterError(f"block {block!r} holds a count that is not a whole number")


def _ring(bits: int, segment: Segment, contributions: int) -> FixedPoint:
    """Return the segment's fixed point; `BudgetError` if its sums do not fit."""
    bound = segment.bound_on_sum(contributions)
    if segment.integral:
        return FixedPoint(bits, bound, 1.0)
    ring = FixedPoint.widest(bits, bound, contributions)
    exact = 2.0 ** floor(log2(_EXACT / segment.clip))  # a single value, which may exceed the sum's bound, must be exact
    return ring if ring.scale <= exact else FixedPoint(bits, bound, exact)


def _segment_fault(bits: int, segment: Segment, contributions: int) -> str | None:
    """Return why the segment's sums do not fit; None if they do."""
    try:
        ring = _ring(bits, segment, contributions)
    except BudgetError as error:
        return str(error)
    step = 1.0 / ring.scale
    return f"a ring step is {step:g}, greater than the clip {segment.clip:g}" if step > segment.clip else None
