"""Components of graph filters computed from all data in one place, the reference for PriviRec's sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds

from client_sdk.training.graph_filters import Components


def normalised(
    rows: csr_array[Any, Any], degrees: NDArray[np.floating], exponents: tuple[float, float]
) -> csr_array[Any, Any]:
    """Return R~ = D_u^-a R D_i^-b, float64 (users, items).

    rows: R, of 0 and 1, of the users whose rows make P. degrees: of the items, float64 (items,). exponents: a and b.
    """
    found: csr_array[Any, Any] = rows.astype(np.float64)
    by_user = _scales(np.diff(found.indptr).astype(np.float64), exponents[0])
    found.data *= np.repeat(by_user, np.diff(found.indptr)) * _scales(degrees, exponents[1])[found.indices]
    return found


def central_components(
    rows: csr_array[Any, Any], degrees: NDArray[np.float64], columns: int, exponents: tuple[float, float] = (0.5, 0.5)
) -> Components:
    """Return the `columns` leading singular vectors of R~ by ARPACK, and the item-item matrix P = R~^T R~.

    Fewer vectors where R~ has at most `columns` rows or columns. See `normalised` for the arguments.
    """
    scaled = normalised(rows, degrees, exponents)
    count = min(columns, min(scaled.shape) - 1)
    _, values, transposed = svds(scaled, k=count, random_state=0)
    order = np.argsort(-values)
    vectors = np.ascontiguousarray(transposed[order].T, dtype=np.float32)
    gram = csr_array(scaled.T @ scaled).astype(np.float32)
    return Components(degrees, vectors, values[order].astype(np.float32), gram, *exponents)


def _scales(degrees: NDArray[np.floating], exponent: float) -> NDArray[np.float64]:
    return np.asarray(np.power(degrees, -exponent, out=np.zeros(degrees.shape), where=degrees > 0))
