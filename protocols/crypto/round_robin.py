"""Places in the round-robin cohorts of a repeatable task, whose seed its operator chose."""

from __future__ import annotations

from protocols.crypto.domain import digest

__all__ = ["repeatable_place"]


def repeatable_place(task_seed: bytes, identity_key: bytes) -> int:
    """Return a client's place, 0 <= place < 2^62, which follows from its Ed25519 `identity_key` (32 bytes).

    Cohorts are drawn in the order of the places. Anyone can compute them, so a client could try keys until it likes its
    place: for experiments only.
    """
    return int.from_bytes(digest("round-robin place", task_seed, identity_key)[:8], "big") >> 2
