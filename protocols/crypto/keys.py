"""Ed25519 signatures (RFC 8032) and X25519 agreement (RFC 7748) with keys that come from the wire."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from protocols.crypto.domain import digest
from protocols.errors import CodecError

__all__ = ["agree", "check_public_key", "clamped", "public_key", "verifies"]

_KEPT: Final = 8192
"""Parsed keys, of about 500 bytes each: a client sends several requests in a row; parsing takes a tenth of a check."""
_FIXED: Final = X25519PrivateKey.from_private_bytes(digest("masked key check"))
"""A public constant: any private key serves to detect points of low order."""


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


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key (32 bytes) of a secret key (32 bytes)."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def clamped(secret: bytes) -> bytes:
    """Return the canonical form (RFC 7748, section 5) of the 32 bytes that X25519 treats as the same secret key.

    Mask keys have this form, so that every wrong bit in a key reconstructed from shares is detected.
    """
    return bytes([secret[0] & 248]) + secret[1:31] + bytes([secret[31] & 127 | 64])


def agree(secret: X25519PrivateKey, peer: bytes) -> bytes:
    """Return the X25519 shared secret (32 bytes); `CodecError` if the peer's public key has low order."""
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise CodecError("an X25519 public key has low order: it is not usable for key agreement") from error


def check_public_key(key: bytes) -> None:
    """Raise `CodecError` if the X25519 public key has low order."""
    agree(_FIXED, key)
