"""Strict binary encoding: exact lengths, no trailing bytes, and no allocation of a size that only the wire states."""

from __future__ import annotations

import binascii
import struct
from typing import Final

from protocols.errors import CodecError

__all__ = ["Reader", "b64decode", "b64encode", "exact", "pack"]

_LENGTH: Final = struct.Struct("<Q")


def exact(body: bytes | bytearray | memoryview, length: int, what: str) -> memoryview:
    """Return `body` as a memoryview of bytes; `CodecError` unless it has exactly `length` bytes.

    what: the name of the body in the error's text.
    """
    view = memoryview(body)
    if view.nbytes != length:
        raise CodecError(f"{what} must be exactly {length} bytes, got {view.nbytes}")
    return view.cast("B") if view.format != "B" else view


def pack(*chunks: bytes) -> bytes:
    """Return the chunks concatenated, each after its length as a little-endian uint64. The encoding is injective."""
    return b"".join([_LENGTH.pack(len(chunk)) + chunk for chunk in chunks])


class Reader:
    """Decoder for fixed-length fields and the chunks of `pack`."""

    def __init__(self, body: bytes | bytearray | memoryview) -> None:
        self._rest = memoryview(body).cast("B")

    def fixed(self, length: int) -> bytes:
        """Return the next `length` bytes; `CodecError` if fewer are left."""
        if len(self._rest) < length:
            raise CodecError(f"expected {length} more bytes, {len(self._rest)} are left")
        taken, self._rest = bytes(self._rest[:length]), self._rest[length:]
        return taken

    def chunk(self, limit: int) -> bytes:
        """Return the next length-prefixed chunk; `CodecError` if it is longer than `limit` bytes or incomplete."""
        (length,) = _LENGTH.unpack(self.fixed(_LENGTH.size))
        if length > limit:
            raise CodecError(f"a chunk of {length} bytes is over the limit of {limit}")
        return self.fixed(length)

    @property
    def is_empty(self) -> bool:
        """Whether no bytes are left."""
        return not len(self._rest)

    def finish(self) -> None:
        """Raise `CodecError` if bytes are left."""
        if len(self._rest):
            raise CodecError(f"{len(self._rest)} trailing bytes")


_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/=", b"+/!!!")  # "!" is in no alphabet
_PADDING: Final = (b"", b"", b"==", b"=")
_LAST: Final = ("", "", "AQgw", "AEIMQUYcgkosw048")
"""By the number of characters modulo 4: the last characters whose unused bits are 0, so that bytes have one text."""


def b64encode(body: bytes) -> str:
    """Return `body` as base64url without padding, the form of bytes in the JSON fields of the API."""
    return binascii.b2a_base64(body, newline=False).translate(_TO_URL).rstrip(b"=").decode("ascii")


def b64decode(text: str, length: int | None = None) -> bytes:
    """Decode the text of `b64encode`; `CodecError` for any other form, or another number of bytes than `length`."""
    try:
        rest = len(text) % 4
        body = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL) + _PADDING[rest], strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise CodecError("not base64url") from error
    if rest and text[-1] not in _LAST[rest]:
        raise CodecError("not canonical base64url without padding")
    if length is not None and len(body) != length:
        raise CodecError(f"expected {length} bytes, got {len(body)}")
    return body
