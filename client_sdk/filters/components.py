"""The aggregated inputs of a graph filter: item degrees, leading singular vectors and, for some, the Gram matrix.

R is the binary users x items matrix, D_u and D_i hold its row and column sums. R~ = D_u^-a R D_i^-b, and P = R~^T R~
(PriviRec, eq. 2, has a = b = 1/2; Turbo-CF tunes a, with b = 1 - a). All of them are sums over clients; no row of R is
needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from protocols.errors import ParameterError

__all__ = ["Components"]


@dataclass(frozen=True, eq=False)
class Components:
    """Aggregated components of m items. Raises `ParameterError` if their shapes do not match."""

    item_degrees: NDArray[np.float64]
    """(m,), the number of users of each item. An item without users has scores of 0."""
    vectors: NDArray[np.float32]
    """(m, K), orthonormal columns: right singular vectors of R~, by descending singular value.

    K may be 0 if `gram` is set.
    """
    singular_values: NDArray[np.float32]
    """(K,), singular values of R~: the square roots of the eigenvalues of P."""
    gram: csr_array[Any, Any] | None = None
    """P, float32 (m, m), both triangles. None for PriviRec-k, where P ~ V diag(s^2) V^T (approximation 3.3)."""
    user_exponent: float = 0.5
    """a, the exponent of the users' degrees in R~."""
    item_exponent: float | None = None
    """b, the exponent of the items' degrees in R~; None for 1 - a."""

    def __post_init__(self) -> None:
        items, columns = self.item_degrees.size, self.singular_values.size
        if self.item_degrees.shape != (items,) or self.vectors.shape != (items, columns):
            raise ParameterError(
                f"degrees of shape {self.item_degrees.shape} and {columns} singular values do not match "
                f"vectors of shape {self.vectors.shape}"
            )
        if self.gram is not None and self.gram.shape != (items, items):
            raise ParameterError(f"the Gram matrix must be that of {items} items, got shape {self.gram.shape}")
        if self.gram is None and not columns:
            raise ParameterError("components need singular vectors or a Gram matrix")

    @property
    def n_items(self) -> int:
        """m, the number of items."""
        return int(self.item_degrees.size)

    @property
    def degree_exponent(self) -> float:
        """b, the exponent of the items' degrees in R~."""
        return 1.0 - self.user_exponent if self.item_exponent is None else self.item_exponent

    def degree_scales(self, exponent: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the diagonals of D_i^-e and D_i^e, e = `exponent`, float32 (m,) each; 0 in both without users."""
        has_users = self.item_degrees > 0
        up = np.power(self.item_degrees, exponent, out=np.zeros_like(self.item_degrees), where=has_users)
        down = np.divide(1.0, up, out=np.zeros_like(up), where=has_users)
        return down.astype(np.float32), up.astype(np.float32)
