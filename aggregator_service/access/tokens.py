"""Ids and tokens. Tokens are shown once and stored as a SHA-256; they have 256 bits, so no slow hash is needed."""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = ["hash_token", "matches", "new_id", "new_token"]


def new_id(prefix: str) -> str:
    """An opaque id: prefix, underscore and 80 random bits."""
    return f"{prefix}_{secrets.token_hex(10)}"


def new_token(prefix: str) -> str:
    """A token of 256 random bits behind a prefix that tells people (and secret scanners) what it is."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """What is stored in place of a token: SHA-256, hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def matches(token_hash: str, stored_hash: str) -> bool:
    """Compare two hashes in constant time."""
    return hmac.compare_digest(token_hash, stored_hash)
