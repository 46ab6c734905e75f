"""Domain separation of keys, seeds and digests by purpose. No other module calls a KDF."""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protocols.codec import pack
from protocols.errors import ParameterError

SEED_BYTES: Final = 32
KEY_BYTES: Final = 32
"""Of Ed25519, X25519 and AES-256 keys."""
DIGEST_BYTES: Final = 32
"""Of SHA-256."""
SIGNATURE_BYTES: Final = 64
"""Of Ed25519."""
_PREFIX: Final = b"hushrec/1"


def domain_tag(purpose: str, *context: str | int | bytes) -> bytes:
    """Return the tag of `purpose` in `context` (task, round, pair): different inputs have different tags.

    Raises `ParameterError` for an empty purpose.
    """
    if not purpose:
        raise ParameterError("a domain tag needs a purpose")
    return _PREFIX + pack(purpose.encode(), *[_part(part) for part in context])


def _part(part: str | int | bytes) -> bytes:
    if isinstance(part, bytes):
        return b"b" + part
    if isinstance(part, int):
        return b"i" + str(part).encode()
    return b"s" + part.encode()


def derive_key(secret: bytes, purpose: str, *context: str | int | bytes, length: int = 32) -> bytes:
    """Return a key of `length` bytes derived from `secret` by HKDF-SHA256 (RFC 5869), bound to purpose and context."""
    return HKDF(hashes.SHA256(), length, salt=None, info=domain_tag(purpose, *context)).derive(secret)


def derive_seed(seed: bytes, purpose: str, *context: str | int | bytes) -> bytes:
    """Return 32 bytes derived from a PUBLIC seed, bound to purpose and context: for broadcasts, not for secrets."""
    return digest(purpose, seed, *context)


def digest(purpose: str, *parts: str | int | bytes) -> bytes:
    """Return the SHA-256 digest (32 bytes) of an injective encoding of purpose and parts."""
    return hashlib.sha256(domain_tag(purpose, *parts)).digest()


def repeatable_place(task_seed: bytes, identity_key: bytes) -> int:
    """Return a client's place, 0 <= place < 2^62, which follows from its Ed25519 `identity_key` (32 bytes).

    Cohorts are drawn in the order of the places. Anyone can compute them, so a client could try keys until it likes its
    place: for experiments only.
    """
    return int.from_bytes(digest("round-robin place", task_seed, identity_key)[:8], "big") >> 2
