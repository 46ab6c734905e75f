"""EASE (Steck, WWW 2019), a linear auto-encoder in closed form, from the spectrum of P or from P itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.components import Components
from client_sdk.filters.requirements import check_exponent
from client_sdk.filters.rows import by_chunk, check_rows
from protocols.errors import ParameterError

__all__ = ["Ease"]


@dataclass(frozen=True)
class Ease:
    """S = (X - X G diag(G)^-1) D_i^1/2 with X = R D_i^-1/2 and G = (P + weight I)^-1.

    Steck's B = I - G diag(G)^-1 (eq. 8) of R~ in place of R, whose rows and columns are scaled; the scale of a user's
    row changes no order. From factors, P ~ V diag(s^2) V^T, so G = (I - V diag(w) V^T) / weight with
    w = s^2 / (s^2 + weight), and no items x items matrix is made. Raises `ParameterError` for values out of range.
    """

    weight: float = 0.03
    """lambda, the L2 weight on B: of five, the best on validation rows of ML-100K, second best on ML-1M, by NDCG@20
    over all items with 64 components; sparse data are better with more (a sample of Gowalla: 0.3 to 1)."""

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ParameterError(f"weight must be > 0, got {self.weight}")

    @property
    def needs_gram(self) -> bool:
        """False: the filter also works with the factors of PriviRec-k."""
        return False

    @property
    def user_exponent(self) -> float:
        """The exponent a that the components must have."""
        return 0.5

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Return the scores of all items for binary `rows` (users, m), float32 (users, m).

        The user's own items have scores too. With a Gram matrix, float64 (m, m) is inverted. Raises `ParameterError` if
        rows or components do not match the filter.
        """
        check_rows(rows, components.n_items)
        check_exponent(components, self.user_exponent)
        inverse_roots, roots = components.root_degrees()
        whole = None if components.gram is None else self._weights(components.gram)
        values = components.singular_values.astype(np.float64) ** 2
        shares = values / (values + self.weight)
        diagonal = 1.0 - components.vectors.astype(np.float64) ** 2 @ shares

        def score(chunk: csr_array[Any, Any]) -> NDArray[np.float32]:
            data = chunk.data * inverse_roots[chunk.indices]
            scaled = csr_array((data, chunk.indices, chunk.indptr), shape=chunk.shape)
            if whole is not None:
                return np.asarray((scaled @ whole) * roots, dtype=np.float32)
            dense = scaled.toarray()
            kept = ((scaled @ components.vectors) * shares) @ components.vectors.T
            return np.asarray((dense - (dense - kept) / diagonal) * roots, dtype=np.float32)

        return by_chunk(rows, score)

    def _weights(self, gram: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Return B, float32 (m, m)."""
        dense = gram.astype(np.float64).toarray()
        dense[np.diag_indices_from(dense)] += self.weight
        inverse = np.linalg.inv(dense)
        weights = -inverse / np.diag(inverse)
        np.fill_diagonal(weights, 0.0)
        return np.asarray(weights, dtype=np.float32)
