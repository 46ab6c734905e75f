"""Shamir sharing (Commun. ACM, 1979) of 32-byte secrets over one fixed prime field."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

__all__ = ["PRIME", "SECRET_BYTES", "SHARE_BYTES", "combine", "combine_checked", "split"]

PRIME: Final = 2**256 + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33


def split(
    secret: bytes, threshold: int, points: Sequence[int], random: Callable[[int], bytes] = os.urandom
) -> list[bytes]:
    """One share of 33 bytes a point."""
    raise NotImplementedError


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the `threshold` shares of the lowest points."""
    raise NotImplementedError


def combine_checked(
    shares: Mapping[int, bytes], threshold: int, check: Callable[[bytes], bool]
) -> tuple[bytes, frozenset[int]]:
    """The secret that passes `check`, and the points whose shares were wrong."""
    raise NotImplementedError
