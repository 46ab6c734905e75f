"""Ids and tokens. Tokens are stored as SHA-256; with 256 random bits they need no slow password hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = ["hash_token", "matches", "new_id", "new_token"]


def new_id(prefix: str) -> str:
    """Return an opaque id: `prefix`, an underscore and 80 random bits in hex."""
    return f"{prefix}_{secrets.token_hex(10)}"


def new_token(prefix: str) -> str:
    """Return a token: `prefix`, an underscore and 256 random bits. Secret scanners find it by its prefix."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token, hex, which is stored in place of the token."""
    return hashlib.sha256(token.encode()).hexdigest()


def matches(token_hash: str, stored_hash: str) -> bool:
    """Return whether two hashes are equal, in constant time."""
    return hmac.compare_digest(token_hash, stored_hash)
