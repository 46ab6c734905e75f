"""Mask streams that can be sought to any element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Mask", "Sign", "add_mask", "add_masks"]

Sign = Literal[1, -1]
Mask = tuple[bytes, bytes, Sign]
"""Key (32 bytes), context, and whether the stream is added or subtracted."""


def add_mask(target: NDArray[np.unsignedinteger[Any]], key: bytes, context: bytes, sign: Sign, start: int = 0) -> None:
    """Add elements `start`, `start` + 1, ... of the stream to `target`, in place."""
    raise NotImplementedError


def add_masks(
    target: NDArray[np.unsignedinteger[Any]], masks: Sequence[Mask], threads: int = 1, start: int = 0
) -> None:
    """Add several streams to `target`, in place."""
    raise NotImplementedError
