"""Users' rows of the binary interaction matrix, the input of the filters."""

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
    """Return a user's row, float32 CSR (1, n_items). Raises `ParameterError` for an item outside 0..n_items-1."""
    known = np.unique(np.asarray(items, dtype=np.int64))
    if known.size and not (known[0] >= 0 and known[-1] < n_items):
        raise ParameterError(f"items must lie in 0..{n_items - 1}, got {known[0]}..{known[-1]}")
    return csr_array((np.ones(known.size, dtype=np.float32), known, [0, known.size]), shape=(1, n_items))


def interaction_rows(interactions: Interactions) -> csr_array[Any, Any]:
    """Return the rows of all users, float32 CSR (n_users, n_items)."""
    ones = np.ones(interactions.size, dtype=np.float32)
    shape = (interactions.n_users, interactions.n_items)
    rows = csr_array((ones, interactions.items.copy(), interactions.indptr), shape=shape)
    rows.sort_indices()
    return rows


def check_rows(rows: csr_array[Any, Any], n_items: int) -> None:
    """Raise `ParameterError` unless `rows` has shape (users, n_items) and only ones as stored values."""
    if rows.ndim != 2 or rows.shape[1] != n_items:
        raise ParameterError(f"rows must have {n_items} columns, got shape {rows.shape}")
    if not bool((rows.data == 1).all()):
        raise ParameterError("rows must be binary: each interaction is a 1")


def by_chunk(
    rows: csr_array[Any, Any], score: Callable[[csr_array[Any, Any]], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Apply `score` to chunks of the rows and return all scores, float32 (users, m). Limits the memory of `score`."""
    scores = np.empty(rows.shape, dtype=np.float32)
    for chunk in _chunks(rows.shape[0], max(1, CHUNK_VALUES // max(1, rows.shape[1]))):
        scores[chunk] = score(rows[chunk])
    return scores


def _chunks(length: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, length, step))
