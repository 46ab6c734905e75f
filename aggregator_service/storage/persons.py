"""Digests that stand for a person: what guards compare, and what is left of an identity after an erasure.

An Ed25519 key and a serial of 64 random bits cannot be found from their digests. Whoever has the key or the serial can
compute the digest: it recognises somebody, it does not name anybody.
"""

from __future__ import annotations

from protocols.crypto.keys import digest


def erased_subject(scope: str, subject: bytes | None) -> bytes | None:
    """Return what stands for an organiser's subject (8 bytes) after an erasure, 8 bytes; None for no subject."""
    return None if subject is None else digest("erased subject", scope, subject)[: len(subject)]
