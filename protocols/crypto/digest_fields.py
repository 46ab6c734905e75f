"""The HTTP fields Content-Digest and Repr-Digest (RFC 9530), with the algorithm sha-256.

Format: `sha-256=:<base64 of the 32 bytes>:`, a dictionary of byte sequences (RFC 9651). Members for other algorithms
may precede or follow it, separated by commas.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from protocols.errors import CodecError

__all__ = ["format_digest", "parse_digest"]

_ALGORITHM: Final = "sha-256"
_DIGEST_BYTES: Final = 32
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def format_digest(digest: bytes) -> str:
    """Return the value of a digest field. digest: a SHA-256, 32 bytes."""
    return f"{_ALGORITHM}=:{base64.b64encode(digest).decode('ascii')}:"


def parse_digest(value: str) -> bytes | None:
    """Return the SHA-256 (32 bytes) in the value of a digest field, None if it holds other algorithms only.

    Raises `CodecError` if the first member for sha-256 is malformed.
    """
    for member in value.split(","):
        name, equals, item = member.strip().partition("=")
        if name != _ALGORITHM:
            continue
        text = item.partition(";")[0].rstrip()  # without parameters
        if not equals or len(text) < 2 or text[0] != ":" or text[-1] != ":":
            raise CodecError("a digest field must hold a byte sequence between colons (RFC 9530)")
        if not _BASE64.fullmatch(text[1:-1]):  # stricter than b64decode, which accepts superfluous padding
            raise CodecError("the byte sequence of a digest field must be base64")
        digest = base64.b64decode(text[1:-1])
        if len(digest) != _DIGEST_BYTES:
            raise CodecError(f"a sha-256 digest has {_DIGEST_BYTES} bytes, not {len(digest)}")
        return digest
    return None
