"""Ring elements as bytes: 16, 32 and 64 bits raw, other widths packed without gaps, all little-endian.

Element i takes bits i*bits to (i+1)*bits of the body, lowest first, bit b being bit b%8 of byte b//8: for 16, 32 and 64
that is the usual raw form. The last byte's unused bits are zero. 64 elements fill exactly `bits` words of 64 bits, so
packing is a few shifts over all groups of 64 at once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ParameterError
from protocols.sums.base import Buffer
from protocols.sums.draft import Draft

__all__ = ["GROUP", "RAW_BITS", "pack", "packed_bytes", "ring_dtype", "unpack", "unpack_part"]

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
    draft = Draft(packed_bytes(elements.size, bits))
    for start in range(0, elements.size, _PIECE):
        piece = _pack_piece(elements[start : start + _PIECE], bits)
        place = start * bits // 8
        draft.body[place : place + len(piece)] = piece
    return draft.finish()


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
