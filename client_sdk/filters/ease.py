"""EASE (Steck, WWW 2019), a linear auto-encoder in closed form, from the spectrum of P or from P itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.components import Components
from client_sdk.filters.rows import by_chunk, check_rows
from protocols.errors import ParameterError
from protocols.recipes.privirec.ease import chosen_weight, shares_and_diagonal

__all__ = ["Ease"]


@dataclass(frozen=True)
class Ease:
    """S = (X - X G diag(G)^-1) D_i^b with X = R D_i^-b and G = (P + weight I)^-1; for components of any exponents.

    The formulas are in `protocols.recipes.privirec.ease`. Raises `ParameterError` for values out of range.
    """

    weight: float | None = None
    """The L2 weight on B; None for `chosen_weight`."""

    def __post_init__(self) -> None:
        if self.weight is not None and not self.weight > 0:
            raise ParameterError(f"weight must be > 0, got {self.weight}")

    @property
    def needs_gram(self) -> bool:
        """False: the filter also works with the factors of PriviRec-k."""
        return False

    @property
    def user_exponent(self) -> None:
        """None: the filter takes components with any exponents."""
        return None

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Return the scores of all items for binary `rows` (users, m), float32 (users, m).

        The user's own items have scores too, as if the user did not have them. With a Gram matrix, float64 (m, m) is
        inverted. Raises `ParameterError` if the rows do not match the components.
        """
        check_rows(rows, components.n_items)
        weight = chosen_weight(components.singular_values) if self.weight is None else self.weight
        down, up = components.degree_scales(components.degree_exponent)
        whole = None if components.gram is None else _weights(components.gram, weight)
        shares, diagonal = shares_and_diagonal(components.vectors, components.singular_values, weight)

        def score(chunk: csr_array[Any, Any]) -> NDArray[np.float32]:
            scaled = csr_array((chunk.data * down[chunk.indices], chunk.indices, chunk.indptr), shape=chunk.shape)
            if whole is not None:
                return np.asarray((scaled @ whole) * up, dtype=np.float32)
            dense = scaled.toarray()
            kept = ((scaled @ components.vectors) * shares) @ components.vectors.T
            return np.asarray((dense - (dense - kept) / diagonal) * up, dtype=np.float32)

        return by_chunk(rows, score)


def _weights(gram: csr_array[Any, Any], weight: float) -> NDArray[np.float32]:
    """Return B, float32 (m, m)."""
    dense = gram.astype(np.float64).toarray()
    dense[np.diag_indices_from(dense)] += weight
    inverse = np.linalg.inv(dense)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return np.asarray(weights, dtype=np.float32)
