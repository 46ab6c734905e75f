"""Encodings: strict binary ones, and the canonical form of JSON.

*Binary*: exact lengths, no trailing bytes, and no allocation of a size that only the wire states.

*Canonical JSON* is RFC 8785 (JSON Canonicalization Scheme): equal values have equal bytes. Implementations in other
languages agree on it, numbers included: 600 and 600.0 are the same number, so both are `600`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from protocols.errors import CodecError, ParameterError

_LENGTH: Final = struct.Struct("<Q")


def exact(
    body: bytes | bytearray | memoryview, length: int, what: str, error: type[CodecError] = CodecError
) -> memoryview:
    """Return `body` as a memoryview of bytes; `error` unless it has exactly `length` bytes.

    what: the name of the body in the error's text.
    """
    view = memoryview(body)
    if view.nbytes != length:
        raise error(f"{what} must be exactly {length} bytes, got {view.nbytes}")
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
    def left(self) -> int:
        """Number of bytes that are left."""
        return len(self._rest)

    @property
    def is_empty(self) -> bool:
        """Whether no bytes are left."""
        return not len(self._rest)

    def finish(self) -> None:
        """Raise `CodecError` if bytes are left."""
        if len(self._rest):
            raise CodecError(f"{len(self._rest)} trailing bytes")


LONGEST_ID: Final = 64  # of a client or a member of a committee, in bytes of UTF-8


def join_named(name: str, fields: Sequence[bytes], lengths: Sequence[int]) -> bytes:
    """Return an id behind its length (1 byte), then fields of these lengths; `ParameterError` for other lengths."""
    body = name.encode()
    if not 1 <= len(body) <= LONGEST_ID:
        raise ParameterError(f"an id has 1 to {LONGEST_ID} bytes, got {len(body)}")
    if [len(part) for part in fields] != list(lengths):
        raise ParameterError(f"the fields after an id have {list(lengths)} bytes, got {[len(part) for part in fields]}")
    return bytes([len(body)]) + body + b"".join(fields)


def split_named(reader: Reader, lengths: Sequence[int]) -> tuple[str, list[bytes]]:
    """Return the next id and fields that `join_named` joined; `CodecError` for any other form."""
    (length,) = reader.fixed(1)
    if not 1 <= length <= LONGEST_ID:
        raise CodecError(f"an id has 1 to {LONGEST_ID} bytes, got {length}")
    try:
        name = reader.fixed(length).decode()
    except UnicodeDecodeError as error:
        raise CodecError("an id is not UTF-8") from error
    return name, [reader.fixed(size) for size in lengths]


def b64encode(body: bytes) -> str:
    """Return `body` as base64url without padding, the form of bytes in the JSON fields of the API."""
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode("ascii")


def b64length(length: int) -> int:
    """Return how many characters `b64encode` makes of `length` bytes."""
    return -(-length * 4 // 3)


def b64decode(text: str, length: int | None = None) -> bytes:
    """Decode the text of `b64encode`; `CodecError` for any other form, or another number of bytes than `length`."""
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise CodecError("not base64url") from error
    if b64encode(body) != text:  # foreign characters are skipped, unused bits ignored: bytes have one text here
        raise CodecError("not canonical base64url without padding")
    if length is not None and len(body) != length:
        raise CodecError(f"expected {length} bytes, got {len(body)}")
    return body


_LARGEST_EXACT: Final = 2**53 - 1


def canonical_json(value: Any) -> bytes:
    """Return the canonical form of a JSON value, UTF-8.

    value: None, booleans, numbers, strings, and lists and mappings of these, with strings as keys. Raises
    `ParameterError` for anything else: a whole number beyond 2^53 - 1, which other languages round, a number that is
    not finite, or a string with a lone surrogate.
    """
    try:
        return _text(value).encode()
    except UnicodeEncodeError:
        raise ParameterError("a string has no canonical form: it holds half of a surrogate pair") from None


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        # RFC 8785, section 3.2.3: names are ordered by their UTF-16 code units
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_text(name)}:{_text(value[name])}" for name in names) + "}"
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "[" + ",".join(map(_text, value)) + "]"
    raise ParameterError(f"a {type(value).__name__} has no canonical JSON form")


def _number(value: int | float) -> str:
    """Return a number as ECMAScript's Number::toString writes it: the shortest digits that read back exactly."""
    if isinstance(value, int):
        if abs(value) > _LARGEST_EXACT:
            raise ParameterError("a whole number beyond 2^53 - 1 has no canonical JSON form: write it as a string")
        return str(value)
    if not isfinite(value):
        raise ParameterError("a number that is not finite has no JSON form")
    if not value:
        return "0"
    number = Decimal(repr(value)).normalize()
    power = number.adjusted()
    return f"{number:f}" if -7 < power < 21 else f"{number.scaleb(-power):f}e{power:+d}"
