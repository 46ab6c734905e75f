"""The HTTP fields Content-Digest and Repr-Digest (RFC 9530), with the algorithm sha-256.

Format: `sha-256=:<base64 of the 32 bytes>:`, a dictionary of byte sequences (RFC 9651). Members for other algorithms
may precede or follow it, separated by commas.
"""

from __future__ import annotations

import base64
import re
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Final

from protocols.errors import CodecError

__all__ = ["format_digest", "format_digests", "parse_digest", "parse_digests"]

_ALGORITHM: Final = "sha-256"
_DIGEST_BYTES: Final = 32
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")

_USUAL: Final = re.compile(rf"{_ALGORITHM}=:([A-Za-z0-9+/]{{43}}=):")
"""What `format_digest` writes. Other fields take longer to read."""


def format_digest(digest: bytes) -> str:
    """Return the value of a digest field. digest: a SHA-256, 32 bytes."""
    return f"{_ALGORITHM}=:{base64.b64encode(digest).decode('ascii')}:"


def parse_digest(value: str) -> bytes | None:
    """Return the SHA-256 (32 bytes) in the value of a digest field, None if it holds other algorithms only.

    Raises `CodecError` if the first member for sha-256 is malformed.
    """
    usual = _USUAL.fullmatch(value)
    if usual is not None:
        return a2b_base64(usual[1])
    for member in value.split(","):
        name, equals, item = member.strip().partition("=")
        if name == _ALGORITHM:
            return _digest(equals, item)
    return None


def format_digests(digests: Mapping[str, bytes]) -> str:
    """Return a dictionary field (RFC 9651) of SHA-256 digests by name: `a=:<base64>:, b=:<base64>:`."""
    return ", ".join(f"{name}=:{base64.b64encode(digest).decode('ascii')}:" for name, digest in digests.items())


def parse_digests(value: str) -> dict[str, bytes]:
    """Return the digests in the field of `format_digests`, at most eight; `CodecError` for a malformed one."""
    members = [member.strip().partition("=") for member in value.split(",")[:8]]
    return {name: _digest(equals, item) for name, equals, item in members}


def _digest(equals: str, item: str) -> bytes:
    text = item.partition(";")[0].rstrip()  # without parameters
    if not equals or len(text) < 2 or text[0] != ":" or text[-1] != ":":
        raise CodecError("a digest field must hold a byte sequence between colons (RFC 9530)")
    if not _BASE64.fullmatch(text[1:-1]):  # stricter than b64decode, which accepts superfluous padding
        raise CodecError("the byte sequence of a digest field must be base64")
    digest = base64.b64decode(text[1:-1])
    if len(digest) != _DIGEST_BYTES:
        raise CodecError(f"a sha-256 digest has {_DIGEST_BYTES} bytes, not {len(digest)}")
    return digest
