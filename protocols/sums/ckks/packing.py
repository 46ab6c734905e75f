"""Complex packing: N real values in the N/2 complex slots of one ciphertext, for whole arrays at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocols.errors import BudgetError, ParameterError
from protocols.layout import Block
from protocols.sums.ckks.planner import SLACK

__all__ = ["pack_blocks", "unpack_block"]


def pack_blocks(blocks: Sequence[Block], vectors: Sequence[NDArray[np.float64]], degree: int) -> NDArray[np.complex128]:
    """Return the values divided by their clips, complex128 (ciphertexts, degree/2), blocks padded to whole ciphertexts.

    Values 2j and 2j+1 of a ciphertext are the real and the imaginary part of slot j. Raises `ParameterError` for
    another shape than (block.length,), `BudgetError` for a value that is not finite or exceeds its clip.
    """
    if len(vectors) != len(blocks):
        raise ParameterError(f"the route has {len(blocks)} blocks, {len(vectors)} were given")
    lengths = [-(-block.length // degree) * degree for block in blocks]
    padded = np.zeros(sum(lengths))
    start = 0
    for block, vector, length in zip(blocks, vectors, lengths, strict=True):
        _normalise(block, vector, padded[start : start + block.length])
        start += length
    return padded.view(np.complex128).reshape(-1, degree // 2)


def _normalise(block: Block, vector: NDArray[np.float64], into: NDArray[np.float64]) -> None:
    if vector.shape != into.shape:
        raise ParameterError(f"block {block.name!r} needs {block.length} values, got shape {vector.shape}")
    start = 0
    for segment in block.segments:
        end = start + segment.length
        np.divide(vector[start:end], segment.clip, out=into[start:end])
        start = end
    if not (into.max() <= SLACK and into.min() >= -SLACK):
        raise BudgetError(f"block {block.name!r} holds a value that is not finite or exceeds its clip: clip it first")


def unpack_block(block: Block, slots: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Return a sum's values, float64 (block.length,) in the segments' units, from slots (ciphertexts, degree/2)."""
    return np.ascontiguousarray(slots).view(np.float64).reshape(-1)[: block.length] * block.bounds()
