"""Sums of fixed-point values in a ring of 2^b: segments with a scale each, and ring elements as bytes.

*Elements as bytes.* Element i takes bits i*bits to (i+1)*bits of the body, lowest first, bit b being bit b%8 of byte
b//8: for 16, 32 and 64 bits that is the raw little-endian form. The last byte's unused bits are zero. 64 elements fill
exactly `bits` words of 64 bits, so packing is a few shifts over all groups of 64 at once.

*Scales.* The ring is shared by all segments of a layout. Every segment has the finest power-of-two scale whose sums fit
(`FixedPoint.widest`), by the segment's bound on the SUM, which a recipe may prove to be far below contributions * clip.
Counts have scale 1 and are exact. A layout does not fit unless a ring step is at most the clip: with a coarser step,
nothing but rounding error would remain of a value. Rounding to nearest has an error of half a step per contribution.
Scales are powers of two, so encoding and decoding add no error. The rounding of float64 itself is included in the error
bounds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import floor, log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import BudgetError, CodecError, ParameterError
from protocols.fixed_point import FixedPoint
from protocols.layout import Route, Segment, VectorLayout
from protocols.sums.base import Buffer, FixedPointPlan
from protocols.sums.wire import BytesBuilder

Ring = NDArray[np.unsignedinteger[Any]]

RAW_BITS: Final = frozenset({16, 32, 64})
"""Widths whose wire form equals the form in memory."""

GROUP: Final = 64
"""Number of elements that fill a whole number of 64-bit words at any width."""

_PIECE: Final = 4096 * GROUP
"""Elements packed at a time, so that intermediate arrays stay small beside a long vector."""


def ring_dtype(bits: int) -> np.dtype[Any]:
    """Return the narrowest of uint16, uint32 and uint64 that holds `bits` bits; `ParameterError` outside 16..64."""
    if not 16 <= bits <= 64:
        raise ParameterError(f"a ring has 16 to 64 bits, got {bits}")
    return np.dtype(np.uint16 if bits == 16 else np.uint32 if bits <= 32 else np.uint64)


def packed_bytes(count: int, bits: int) -> int:
    """Return the length in bytes of `count` packed elements."""
    return (count * bits + 7) // 8


def pack(elements: Ring, bits: int) -> bytes:
    """Return the elements (any number, of the ring's dtype) modulo 2^bits as `packed_bytes(size, bits)` bytes.

    Raises `ParameterError` for another dtype.
    """
    dtype = ring_dtype(bits)
    if elements.dtype != dtype:
        raise ParameterError(f"elements of {bits} bits are {dtype}, got {elements.dtype}")
    if bits in RAW_BITS:
        return elements.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    if elements.size <= _PIECE:
        return _pack_piece(elements, bits)
    builder = BytesBuilder(packed_bytes(elements.size, bits))
    for start in range(0, elements.size, _PIECE):
        piece = _pack_piece(elements[start : start + _PIECE], bits)
        place = start * bits // 8
        builder.body[place : place + len(piece)] = piece
    return builder.finish()


def _pack_piece(elements: Ring, bits: int) -> bytes:
    groups = -(-elements.size // GROUP)
    padded = np.zeros(groups * GROUP, np.uint64)
    padded[: elements.size] = elements
    padded &= np.uint64((1 << bits) - 1)
    columns = np.ascontiguousarray(padded.reshape(groups, GROUP).T)
    words = np.zeros((bits, groups), np.uint64)
    for position, column in enumerate(columns):
        word, shift = divmod(position * bits, 64)
        words[word] |= column << np.uint64(shift)
        if shift + bits > 64:
            words[word + 1] |= column >> np.uint64(64 - shift)
    return words.T.astype("<u8", order="C").tobytes()[: packed_bytes(elements.size, bits)]


def unpack(body: Buffer, bits: int, count: int) -> Ring:
    """Return `count` elements in the ring's dtype; for 16, 32 and 64 bits a read-only view of `body`.

    Raises `CodecError` for another length, or if the unused bits of the last byte are not zero.
    """
    dtype = ring_dtype(bits)
    view = exact(body, packed_bytes(count, bits), f"{count} elements of {bits} bits")
    if bits in RAW_BITS:
        elements = np.frombuffer(view.toreadonly(), dtype.newbyteorder("<"))
        return elements.astype(dtype, copy=False)
    unused = 8 * view.nbytes - count * bits
    if unused and view[-1] >> (8 - unused):
        raise CodecError("the unused bits of the last byte are not zero")
    groups = -(-count // GROUP)
    raw = np.zeros(groups * bits, "<u8")
    raw.view(np.uint8)[: view.nbytes] = np.frombuffer(view, np.uint8)
    words = np.ascontiguousarray(raw.reshape(groups, bits).T, np.uint64)
    columns = np.empty((GROUP, groups), np.uint64)
    for position in range(GROUP):
        word, shift = divmod(position * bits, 64)
        np.right_shift(words[word], np.uint64(shift), out=columns[position])
        if shift + bits > 64:
            columns[position] |= words[word + 1] << np.uint64(64 - shift)
    columns &= np.uint64((1 << bits) - 1)
    return columns.T.reshape(-1)[:count].astype(dtype)


def unpack_part(body: Buffer, bits: int, count: int, start: int, stop: int) -> Ring:
    """Return elements `start` to `stop` of `count` packed ones, in the ring's dtype; read-only for 16, 32 and 64 bits.

    Raises `CodecError` for another length of the body, `ParameterError` unless 0 <= start <= stop <= count.
    """
    if not 0 <= start <= stop <= count:
        raise ParameterError(f"there are {count} elements, not {start} to {stop}")
    view = exact(body, packed_bytes(count, bits), f"{count} elements of {bits} bits")
    first, last = start - start % GROUP, min(count, stop + -stop % GROUP)
    part = view[first * bits // 8 : packed_bytes(last, bits)]
    return unpack(part, bits, last - first)[start - first : stop - first]


Places = tuple[tuple[tuple[FixedPoint, slice], ...], ...]
"""The fixed point and the slice of every segment, by block of the aggregate."""

_EXACT: Final = 2.0**53


def require_fit(layout: VectorLayout, contributions: int, bits: range, clients: range) -> None:
    """Raise `BudgetError`, with what would fit, unless sums of `contributions` fit a ring of bits[0] bits.

    bits: widths from the ring's to the widest that the mechanism has. clients: the contributions that it can sum.
    `ParameterError` for fewer.
    """
    if contributions < clients[0]:
        raise ParameterError(f"such a sum has at least {clients[0]} contributions, got {contributions}")
    fault = _fault(layout, contributions, bits[0], clients)
    if fault is None:
        return
    most, over = 0, contributions
    while over - most > 1:
        middle = (most + over) // 2
        most, over = (middle, over) if _fault(layout, middle, bits[0], clients) is None else (most, middle)
    fitting = [f"at most {most} contributions fit"] if most >= clients[0] else []
    enough = next((width for width in bits[1:] if _fault(layout, contributions, width, clients) is None), None)
    fitting += [f"{enough} bits fit"] if enough else []
    raise BudgetError(
        f"sums of {contributions} contributions do not fit a ring of {bits[0]} bits ({fault}); "
        f"{', or '.join(fitting) or 'no ring fits'}"
    )


def _fault(layout: VectorLayout, contributions: int, bits: int, clients: range) -> str | None:
    """Return why sums of this layout do not fit a ring of `bits` bits, for the first segment; None if they do."""
    if contributions > clients[-1]:
        return f"no sum has over {clients[-1]} contributions"
    for block in layout.blocks:
        for segment in block.segments:
            try:
                step = 1.0 / _ring(bits, segment, contributions).scale
            except BudgetError as error:
                return f"{block.name}/{segment.name}: {error}"
            if step > segment.clip:
                return f"{block.name}/{segment.name}: a ring step is {step:g}, greater than the clip {segment.clip:g}"
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
    for targets, block, values in zip(route, layout.check_contribution(route, blocks), blocks, strict=True):
        parts = tuple(block.split(values).values())
        for segment, part in zip(block.segments, parts, strict=True):
            if segment.integral and not (np.rint(part) == part).all():
                raise ParameterError(f"block {block.name!r} holds a count that is not a whole number")
        for target in targets:
            for segment, part, (ring, span) in zip(block.segments, parts, places[target], strict=True):
                ring.encode(part, segment.clip, elements[span])


def _ring(bits: int, segment: Segment, contributions: int) -> FixedPoint:
    """Return the segment's fixed point; `BudgetError` if its sums do not fit."""
    bound = segment.bound_on_sum(contributions)
    if segment.integral:
        return FixedPoint(bits, bound, 1.0)
    ring = FixedPoint.widest(bits, bound, contributions)
    exact = 2.0 ** floor(log2(_EXACT / segment.clip))  # a single value, which may exceed the sum's bound, must be exact
    return ring if ring.scale <= exact else FixedPoint(bits, bound, exact)


class RingPlan(FixedPointPlan):
    """A plan whose sums are fixed-point values in a ring of 2^bits, released as packed elements.

    Subclasses are frozen dataclasses with `layout` and `max_contributions`.
    """

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of the sum of one value."""

    @cached_property
    def places(self) -> Places:
        """The fixed point and the slice of every segment, by block of the aggregate."""
        segments = [segment for block in self.layout.blocks for segment in block.segments]
        edges = pairwise(accumulate((segment.length for segment in segments), initial=0))
        spans = iter([slice(start, end) for start, end in edges])
        return tuple(
            tuple((_ring(self.bits, segment, self.max_contributions), next(spans)) for segment in block.segments)
            for block in self.layout.blocks
        )

    @property
    def precision(self) -> dict[str, tuple[float, float]]:
        """Ring steps per 1.0 (1.0 for counts), and the error of rounding and of float64, by `block/segment`."""
        contributions = self.max_contributions
        return {
            f"{block.name}/{segment.name}": (
                ring.scale,
                0.0 if segment.integral else contributions / 2 / ring.scale + contributions * ring.bound / _EXACT,
            )
            for block, own in zip(self.layout.blocks, self.places, strict=True)
            for segment, (ring, _) in zip(block.segments, own, strict=True)
        }

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate in bytes: packed ring elements."""
        return packed_bytes(self.layout.length, self.bits)

    def decode(
        self, elements: NDArray[np.unsignedinteger[Any]], contributions: int, start: int = 0
    ) -> NDArray[np.float64]:
        """Return the part of a sum from place `start` on that `elements` stand for, float64 of their shape.

        Raises `CodecError` for a value beyond the bound of a sum of so many contributions, which shows that masks did
        not cancel.
        """
        total = np.empty(elements.size)
        for block, own in zip(self.layout.blocks, self.places, strict=True):
            if own[-1][1].stop <= start or own[0][1].start >= start + elements.size:
                continue
            for segment, (ring, span) in zip(block.segments, own, strict=True):
                part = slice(max(span.start - start, 0), min(span.stop - start, elements.size))
                if part.start >= part.stop:
                    continue
                total[part] = ring.decode(elements[part])
                rounding = 0.0 if segment.integral else contributions / 2 / ring.scale
                bound = segment.bound_on_sum(contributions) + rounding
                if max(total[part].max(), -total[part].min()) > bound * (1.0 + 2.0**-40):
                    raise CodecError(
                        f"{block.name}/{segment.name} holds a value beyond the bound of a sum of {contributions} "
                        "contributions"
                    )
        return total

    def open_ring(self, aggregate: Buffer, contributions: int) -> NDArray[np.float64]:
        """Return the sum of a released aggregate, float64 (layout.length,); `CodecError` as `decode` raises it."""
        self.require_count(contributions)
        return self.decode(unpack(aggregate, self.bits, self.layout.length), contributions)

    def open_ring_part(self, aggregate: Buffer, contributions: int, start: int, stop: int) -> NDArray[np.float64]:
        """Return values `start` to `stop` of what `open_ring` returns."""
        view = exact(aggregate, self.aggregate_bytes, "an aggregate")
        return self.decode(unpack_part(view, self.bits, self.layout.length, start, stop), contributions, start)
