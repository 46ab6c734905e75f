"""Ring elements as bytes, `bits` each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.sums.base import Buffer

__all__ = ["pack", "packed_bytes", "unpack"]


def packed_bytes(count: int, bits: int) -> int:
    """Length of `count` packed elements."""
    return (count * bits + 7) // 8


def pack(elements: NDArray[np.unsignedinteger[Any]], bits: int) -> bytes:
    """Elements modulo 2^bits, one after the other."""
    raise NotImplementedError


def unpack(body: Buffer, bits: int, count: int) -> NDArray[np.unsignedinteger[Any]]:
    """The inverse of `pack`."""
    raise NotImplementedError
