"""Operations shared by the filters: R P, the ideal low-pass part, and polynomials in P.

P is sparse or given by its factors V diag(s^2) V^T. It is never expanded to a dense items x items matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.components import Components

__all__ = ["ideal", "linear", "polynomial"]


def linear(components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
    """Return R P for `rows` R (users, m), float32 (users, m). Reads only the rows of P for the users' items."""
    if components.gram is not None:
        return np.asarray((rows @ components.gram).toarray(), dtype=np.float32)
    spectrum = (rows @ components.vectors) * components.singular_values**2
    return np.asarray(spectrum @ components.vectors.T, dtype=np.float32)


def ideal(components: Components, rows: csr_array[Any, Any], dims: int) -> NDArray[np.float32]:
    """Return R D_i^-1/2 V V^T D_i^1/2 (PriviRec, eq.

    3 and 4), float32 (users, m), with the first `dims` columns of V.
    """
    inverse, roots = components.degree_scales(0.5)
    vectors = components.vectors[:, :dims]
    scaled = csr_array((rows.data * inverse[rows.indices], rows.indices, rows.indptr), shape=rows.shape)
    return np.asarray(((scaled @ vectors) @ vectors.T) * roots, dtype=np.float32)


def polynomial(
    components: Components, signals: NDArray[np.float32], coefficients: Sequence[float]
) -> NDArray[np.float32]:
    """Return Y (c_0 I + c_1 P + c_2 P^2 + ...) for dense `signals` Y (users, m), float32 (users, m).

    With a Gram matrix it uses Horner's rule, with one product with P for each degree. With factors it applies
    V p(diag(s^2)) V^T in one step, and c_0 to the part outside the span of V.
    """
    if components.gram is None:
        values = np.polynomial.polynomial.polyval(components.singular_values.astype(np.float64) ** 2, coefficients)
        change = (values - coefficients[0]).astype(np.float32)
        spectrum = (signals @ components.vectors) * change
        return np.asarray(np.float32(coefficients[0]) * signals + spectrum @ components.vectors.T, dtype=np.float32)
    columns = np.ascontiguousarray(signals.T)  # P is symmetric, so (Y P)^T = P Y^T: a product of sparse and dense
    total = np.float32(coefficients[-1]) * columns
    for coefficient in reversed(coefficients[:-1]):
        total = components.gram @ total
        total += np.float32(coefficient) * columns
    return np.asarray(total.T, dtype=np.float32)
