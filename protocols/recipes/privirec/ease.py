"""EASE (Steck, WWW 2019) in closed form from a spectrum: what the filter `ease` and the spectral start share.

Steck's B = I - G diag(G)^-1 with G = (P + l I)^-1 (eq. 8), of the scaled rows in place of R; the scale of a user's row
changes no order. With P = V diag(s^2) V^T, V orthonormal,

    w = s^2 / (s^2 + l)      G = (I - V diag(w) V^T) / l      diag(G)_i = (1 - sum_k V_ik^2 w_k) / l

so no items x items matrix is made. For an item j that a user does not have, with its row x scaled by D_i^-b,

    score_j = d_j^b (x V diag(w) V^T)_j / (1 - sum_k V_jk^2 w_k)

which is a product of a user's and an item's factor.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["chosen_weight", "shares_and_diagonal"]

_COLUMNS: Final = 80
_SMALLEST: Final = 0.3


def chosen_weight(singular_values: NDArray[np.floating]) -> float:
    """Return l, the L2 weight on B, for singular values s, (K,), of R~: K min(s)^2 / 80, and 0.3 at least.

    The larger the last value, the more of P the vectors leave out. Chosen on validation rows by NDCG@20 over all items,
    with a = 1/4 and b = 5/16: docs/results.md has what other weights give.
    """
    smallest = float(singular_values.min()) if singular_values.size else 0.0
    return max(_SMALLEST, smallest**2 * singular_values.size / _COLUMNS)


def shares_and_diagonal(
    vectors: NDArray[np.floating], singular_values: NDArray[np.floating], weight: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return w, float64 (K,), and l diag(G), float64 (m,), for V (m, K), s (K,) and l = `weight` > 0."""
    values = singular_values.astype(np.float64) ** 2
    shares = values / (values + weight)
    return shares, 1.0 - np.square(vectors.astype(np.float64)) @ shares
