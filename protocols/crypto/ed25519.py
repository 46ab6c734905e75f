"""Verification of Ed25519 signatures (RFC 8032), with the public keys that were used last kept in parsed form."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["verifies"]

_KEPT: Final = 8192
"""Parsed keys, of about 500 bytes each: a client sends several requests in a row; parsing takes a tenth of a check."""


def verifies(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the signature (64 bytes) of `message` is valid; False also for a malformed key of 32 bytes."""
    try:
        _parsed(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=_KEPT)
def _parsed(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)
