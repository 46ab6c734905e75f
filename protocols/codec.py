"""Bytes with one form only: exact lengths, no trailing bytes, nothing allocated that the wire alone asked for."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Final

from protocols.errors import CodecError

__all__ = ["Reader", "b64decode", "b64encode", "exact", "pack"]

_LENGTH: Final = struct.Struct("<Q")


def exact(body: bytes | bytearray | memoryview, length: int, what: str) -> memoryview:
    """`body` as a memoryview of exactly `length` bytes; `CodecError` says how many there were."""
    view = memoryview(body)
    if view.nbytes != length:
        raise CodecError(f"{what} must be exactly {length} bytes, got {view.nbytes}")
    return view.cast("B") if view.format != "B" else view


def pack(*chunks: bytes) -> bytes:
    """Chunks one after the other, each behind its length as a little-endian uint64. Injective."""
    return b"".join([_LENGTH.pack(len(chunk)) + chunk for chunk in chunks])


class Reader:
    """Takes apart what `pack` and fixed-length fields made, refusing anything that does not fit."""

    def __init__(self, body: bytes | bytearray | memoryview) -> None:
        self._rest = memoryview(body).cast("B")

    def fixed(self, length: int) -> bytes:
        """The next `length` bytes."""
        if len(self._rest) < length:
            raise CodecError(f"{length} more bytes were expected, {len(self._rest)} are left")
        taken, self._rest = bytes(self._rest[:length]), self._rest[length:]
        return taken

    def chunk(self, limit: int) -> bytes:
        """The next length-prefixed chunk, at most `limit` bytes."""
        (length,) = _LENGTH.unpack(self.fixed(_LENGTH.size))
        if length > limit:
            raise CodecError(f"a chunk of {length} bytes is over the limit of {limit}")
        return self.fixed(length)

    def finish(self) -> None:
        """Raise unless everything was read."""
        if len(self._rest):
            raise CodecError(f"{len(self._rest)} trailing bytes")


def b64encode(body: bytes) -> str:
    """Base64url without padding, as every JSON field of the API holds bytes."""
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode("ascii")


def b64decode(text: str, length: int | None = None) -> bytes:
    """The inverse of `b64encode`; `CodecError` for any other form, or when `length` bytes were expected and differ."""
    try:
        body = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise CodecError("not base64url") from error
    if b64encode(body) != text:
        raise CodecError("not canonical base64url without padding")
    if length is not None and len(body) != length:
        raise CodecError(f"{length} bytes were expected, got {len(body)}")
    return body
