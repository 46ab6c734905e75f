"""The parts that the filters share: R P, the ideal low-pass part, and polynomials in P.

P stays as it came: sparse, or in the factors V diag(s^2) V^T, never as a dense items x items matrix.
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
    """R P of `rows` R (users, m), float32 (users, m): only the rows of P that belong to the users' items are read."""
    if components.gram is not None:
        return np.asarray((rows @ components.gram).toarray(), dtype=np.float32)
    spectrum = (rows @ components.vectors) * components.singular_values**2
    return np.asarray(spectrum @ components.vectors.T, dtype=np.float32)


def ideal(components: Components, rows: csr_array[Any, Any], dims: int) -> NDArray[np.float32]:
    """R D_i^-1/2 V V^T D_i^1/2 (PriviRec, eq. 3 and 4), V the first `dims` columns, or all when there are fewer."""
    inverse, roots = components.root_degrees()
    vectors = components.vectors[:, :dims]
    scaled = csr_array((rows.data * inverse[rows.indices], rows.indices, rows.indptr), shape=rows.shape)
    return np.asarray(((scaled @ vectors) @ vectors.T) * roots, dtype=np.float32)


def polynomial(
    components: Components, signals: NDArray[np.float32], coefficients: Sequence[float]
) -> NDArray[np.float32]:
    """Y (c_0 I + c_1 P + c_2 P^2 + ...) of dense `signals` Y (users, m), float32 (users, m).

    With a Gram matrix by Horner's rule, one product with P a degree. In factors, V p(diag(s^2)) V^T at once, and c_0
    for what lies outside V.
    """
    if components.gram is None:
        values = np.polynomial.polynomial.polyval(components.singular_values.astype(np.float64) ** 2, coefficients)
        change = (values - coefficients[0]).astype(np.float32)
        spectrum = (signals @ components.vectors) * change
        return np.asarray(np.float32(coefficients[0]) * signals + spectrum @ components.vectors.T, dtype=np.float32)
    columns = np.ascontiguousarray(signals.T)  # P is symmetric: (Y P)^T = P Y^T, and sparse times dense takes columns
    total = np.float32(coefficients[-1]) * columns
    for coefficient in reversed(coefficients[:-1]):
        total = components.gram @ total
        total += np.float32(coefficient) * columns
    return np.asarray(total.T, dtype=np.float32)
