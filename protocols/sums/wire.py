"""Bytes that several mechanisms have in common: heads that name blocks, partial sums, and ring elements.

*Contributions that name their blocks.* A route is public and reveals nothing. In a layout with `chosen` blocks per
contribution, the client chooses the blocks, so the server learns the choice: in Top-K's `own` support, which entries of
the item factors the client changes most. A mechanism that can sum such blocks uses `name_blocks` in `seal` and
`read_blocks` in `check` and `fold`; the others reject the layout with `refuse_chosen`.

    head      `chosen` block numbers, uint32 little-endian, strictly ascending

*Partial sums.* The number of contributions so far, then the sums, in the memory of the bytes that they become.

    partial   contributions so far, uint64 little-endian, then what the mechanism adds

*Ring elements.* Element i takes bits i*bits to (i+1)*bits of the body, lowest first, bit b being bit b%8 of byte b//8:
for 16, 32 and 64 bits that is the raw little-endian form. The last byte's unused bits are zero. 64 elements fill
exactly `bits` words of 64 bits, so packing is a few shifts over all groups of 64 at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import BudgetError, CodecError, ContributionError, ParameterError
from protocols.layout import VectorLayout
from protocols.sums.base import COUNT_BYTES, Buffer, SumPlan

INDEX_BYTES: Final = 4


def head_bytes(layout: VectorLayout) -> int:
    """Return the length in bytes of the head of a contribution; 0 if the layout has no chosen blocks."""
    return INDEX_BYTES * layout.chosen


def name_blocks(layout: VectorLayout, parts: Sequence[NDArray[np.float64]]) -> tuple[bytes, NDArray[np.float64]]:
    """Return the head of a contribution and its values, float64 (chosen, block length).

    parts: block numbers (chosen,), then values. Raises `ParameterError` unless the numbers are ascending whole numbers
    of blocks of the layout, and there are as many values as these blocks hold.
    """
    if len(parts) != 2:
        raise ParameterError(f"a contribution is a vector of block numbers and one of values, {len(parts)} were given")
    numbers, values = parts
    width = layout.blocks[0].length
    if values.size != layout.chosen * width:
        raise ParameterError(f"{layout.chosen} blocks hold {layout.chosen * width} values, got {values.size}")
    whole = numbers.astype(np.int64) if np.isfinite(numbers).all() else np.zeros(0, np.int64)
    if not (np.array_equal(whole, numbers) and _ascending(layout, whole)):
        raise ParameterError(f"a contribution must name {layout.chosen} blocks of the sum, ascending, each once")
    return whole.astype("<u4").tobytes(), values.reshape(layout.chosen, width)


def read_blocks(plan: SumPlan, body: Buffer) -> tuple[NDArray[np.int64], memoryview]:
    """Return the block numbers, int64 (chosen,), that a contribution names, and the bytes after them.

    Raises `ContributionError` for another length than the plan's, and for numbers that are not ascending or not of a
    block of the layout.
    """
    view = plan.require_length(0, body)
    head = head_bytes(plan.layout)
    numbers = np.frombuffer(view[:head], "<u4").astype(np.int64)
    if not _ascending(plan.layout, numbers):
        raise ContributionError("a contribution must name blocks of the sum in ascending order, each once")
    return numbers, view[head:]


def refuse_chosen(layout: VectorLayout, mechanism: str) -> None:
    """Raise `ParameterError` if contributions to this layout choose their blocks; `mechanism` needs public routes."""
    if layout.chosen:
        raise ParameterError(f"{mechanism!r} sums need public routes: contributions cannot choose their blocks")


def _ascending(layout: VectorLayout, numbers: NDArray[np.int64]) -> bool:
    fits = numbers.shape == (layout.chosen,) and numbers[0] >= 0 and numbers[-1] < len(layout.blocks)
    return bool(fits and (numbers[1:] > numbers[:-1]).all())


Number = TypeVar("Number", bound=np.generic)


class BytesBuilder:
    """`length` zero bytes, writable as `body` until `finish`, and then returned as bytes without a copy."""

    def __init__(self, length: int) -> None:
        self._stream = BytesIO(bytes(length))
        self.body = self._stream.getbuffer()

    def finish(self) -> bytes:
        """Return the bytes, which nothing changes any more: a view of `body` that is still in use costs a copy."""
        self.body.release()
        return self._stream.getvalue()


def read_count(plan: SumPlan, partial: Buffer) -> tuple[int, memoryview]:
    """Return the number of contributions of a partial sum, and what follows; `CodecError` for another length."""
    view = exact(partial, plan.partial_bytes, "a partial sum")
    return int.from_bytes(view[:COUNT_BYTES], "little"), view[COUNT_BYTES:]


def count_more(plan: SumPlan, count: int, more: int) -> int:
    """Return count + more; `BudgetError` if the plan allows fewer contributions."""
    count += more
    if count > plan.max_contributions:
        raise BudgetError(f"the plan allows {plan.max_contributions} contributions, and this is one more")
    return count


class PartialSum(Generic[Number]):
    """A partial sum that is being computed: a count, and little-endian numbers of one dtype, zeros at first."""

    def __init__(self, plan: SumPlan, dtype: np.dtype[Number]) -> None:
        self._plan, self._dtype, self._count = plan, dtype.newbyteorder("<"), 0

    @cached_property
    def _builder(self) -> BytesBuilder:
        return BytesBuilder(self._plan.partial_bytes)  # once the sums are asked for: a fold may need its memory before

    @property
    def sums(self) -> NDArray[Number]:
        """The sums, writable."""
        return np.frombuffer(self._builder.body, self._dtype, offset=COUNT_BYTES)

    def take(self, partial: Buffer) -> NDArray[Number]:
        """Count the contributions of a partial sum; return a view of its sums, for the caller to add.

        Raises `CodecError` for another length, `BudgetError` if there are more contributions than planned.
        """
        more, body = read_count(self._plan, partial)
        self.count_more(more)
        return np.frombuffer(body, self._dtype)

    def count_more(self, more: int) -> None:
        """Count contributions; `BudgetError` if there are more than planned."""
        self._count = count_more(self._plan, self._count, more)

    def encode(self) -> bytes:
        """Return the partial sum. Nothing may hold `sums` any more."""
        self._builder.body[:COUNT_BYTES] = self._count.to_bytes(COUNT_BYTES, "little")
        return self._builder.finish()


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
