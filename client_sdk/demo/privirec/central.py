"""Filter components computed from all data in one place, the reference for PriviRec's sums. Exact, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.data.interactions import Interactions
from client_sdk.filters import Components, interaction_rows

__all__ = ["Users", "central_components"]

Users = NDArray[np.intp] | None


def central_components(
    train: Interactions,
    columns: int,
    counted: Users = None,
    summed: Users = None,
    *,
    exponents: tuple[float, float] = (0.5, 0.5),
) -> tuple[Components, Components]:
    """Return the `columns` leading singular vectors of R~, without and with the item-item matrix P.

    The first result is what privirec-k converges to; the second is what the released filters use. The interactions are
    expanded to a dense float64 matrix (users, items). counted: users whose interactions make the item degrees, all by
    default. summed: users whose rows make P, `counted` by default. exponents: a of the users' and b of the items'
    degrees.
    """
    whole = interaction_rows(train).toarray().astype(np.float64)
    degrees = (whole if counted is None else whole[counted]).sum(axis=0)
    among = counted if summed is None else summed
    rows = whole if among is None else whole[among]
    normalised = _scales(rows.sum(axis=1), exponents[0])[:, None] * rows * _scales(degrees, exponents[1])
    _, values, transposed = np.linalg.svd(normalised, full_matrices=False)
    vectors = np.ascontiguousarray(transposed[:columns].T, dtype=np.float32)
    values = values[:columns].astype(np.float32)
    gram = csr_array((normalised.T @ normalised).astype(np.float32))
    return Components(degrees, vectors, values, None, *exponents), Components(
        degrees, vectors, values, gram, *exponents
    )


def _scales(degrees: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    return np.asarray(np.power(degrees, -exponent, out=np.zeros_like(degrees), where=degrees > 0))
