"""Public random numbers from a broadcast seed.

Words, uniforms and permutations are the same on every machine, bit for bit. Normals are so up to the last bits of a
float64, in which the logarithm and the cosine of mathematics libraries differ.

numpy guarantees the raw stream of a BitGenerator across versions, but not the output of `Generator`. Uniforms and
normals are therefore computed here from Philox's raw 64-bit words.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.domain import derive_seed

__all__ = ["normals", "permutation", "uniforms", "words"]

_PIECE: Final = 1 << 16
"""Values computed at a time."""


def words(seed: bytes, purpose: str, count: int) -> NDArray[np.uint64]:
    """Return `count` uint64 words of Philox4x64-10 (Salmon et al., SC'11), keyed by 128 bits of (seed, purpose)."""
    key = np.frombuffer(derive_seed(seed, purpose)[:16], dtype="<u8").astype(np.uint64)
    return np.random.Philox(key=key).random_raw(count).astype(np.uint64, copy=False)


def uniforms(seed: bytes, purpose: str, count: int) -> NDArray[np.float64]:
    """Return `count` float64 values, uniform in (0, 1], with 53 bits each."""
    drawn = words(seed, purpose, count)
    values = drawn.view(np.float64)  # in the same memory: a task's first model may take most of what there is
    for start in range(0, count, _PIECE):
        piece = slice(start, start + _PIECE)
        values[piece] = ((drawn[piece] >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    return values


def normals(seed: bytes, purpose: str, count: int) -> NDArray[np.float64]:
    """Return `count` standard normal values, float64, by Box and Muller (1958): everywhere alike up to rounding."""
    half = (count + 1) // 2
    u = uniforms(seed, purpose, 2 * half)
    first, second = u[:half], u[half:]
    for start in range(0, half, _PIECE):
        piece = slice(start, start + _PIECE)
        radius, angle = np.sqrt(-2.0 * np.log(first[piece])), 2.0 * np.pi * second[piece]
        first[piece], second[piece] = radius * np.cos(angle), radius * np.sin(angle)
    return u[:count]


def permutation(seed: bytes, purpose: str, count: int) -> NDArray[np.int64]:
    """Return a uniform permutation of range(count), int64: the order of `count` random words (ties are negligible)."""
    return np.argsort(words(seed, purpose, count), kind="stable")
