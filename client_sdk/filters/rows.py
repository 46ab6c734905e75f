"""Users' rows of the binary interaction matrix, as filters take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from client_sdk.data.interactions import Interactions
from protocols.errors import ParameterError

__all__ = ["by_chunk", "check_rows", "interaction_rows", "user_row"]

CHUNK_VALUES: Final = 8_000_000  # values of a chunk's dense scores: 32 MB of float32


def user_row(items: ArrayLike, n_items: int) -> csr_array[Any, Any]:
    """One user's row, float32 CSR (1, n_items). Raises `ParameterError` for an item outside 0..n_items-1."""
    known = np.unique(np.asarray(items, dtype=np.int64))
    if known.size and not (known[0] >= 0 and known[-1] < n_items):
        raise ParameterError(f"items must lie in 0..{n_items - 1}, got {known[0]}..{known[-1]}")
    return csr_array((np.ones(known.size, dtype=np.float32), known, [0, known.size]), shape=(1, n_items))


def interaction_rows(interactions: Interactions) -> csr_array[Any, Any]:
    """All users' rows, float32 CSR (n_users, n_items)."""
    ones = np.ones(interactions.size, dtype=np.float32)
    shape = (interactions.n_users, interactions.n_items)
    rows = csr_array((ones, interactions.items.copy(), interactions.indptr), shape=shape)
    rows.sort_indices()
    return rows


def check_rows(rows: csr_array[Any, Any], n_items: int) -> None:
    """`ParameterError` unless `rows` is (users, n_items) and binary."""
    if rows.ndim != 2 or rows.shape[1] != n_items:
        raise ParameterError(f"rows over {n_items} items were expected, got shape {rows.shape}")
    if not bool((rows.data == 1).all()):
        raise ParameterError("graph filters take binary rows: an interaction is a 1")


def by_chunk(
    rows: csr_array[Any, Any], score: Callable[[csr_array[Any, Any]], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """`score` (users of a chunk, m) of all rows, float32 (users, m); beside the result, memory is that of one chunk."""
    scores = np.empty(rows.shape, dtype=np.float32)
    for chunk in _chunks(rows.shape[0], max(1, CHUNK_VALUES // max(1, rows.shape[1]))):
        scores[chunk] = score(rows[chunk])
    return scores


def _chunks(length: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, length, step))
