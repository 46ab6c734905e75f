"""SVD compression: a baseline of the CoLR paper. Clients train FedMF's full change and keep its best rank-r part of it.

Nguyen et al. (WWW 2024), section 3.2: the client sends factors U_u (items x r) and V_u (r x dim) of its change, and the
server adds up the products U_u V_u and compresses the sum again for the way down, as the released code does. A sum of
products is not a product of sums, so somebody has to multiply each client's factors out before adding: over ciphertexts
nobody can, and the SVD of an encrypted sum is an open problem (appendix C). So this recipe rides on plain sums alone.

There the sum is of vectors, too: a contribution is the product U_u V_u, dense, and so long on the wire; `factor_values`
says how many values the factors have that the paper counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec, Update
from protocols.recipes.factors import FactorParameters, advance
from protocols.recipes.rows import RowRecipe

__all__ = ["SVD", "SVDParameters", "low_rank"]


class SVDParameters(FactorParameters):
    """The shape of the item factors and the rank kept."""

    rank: int = Field(default=4, ge=1, description="Rank r that a client's change, and their mean, are cut to.")

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        if self.rank > self.dim:
            raise ValueError(f"rank {self.rank} is over dim {self.dim}: nothing would be compressed")
        return self


def low_rank(rows: NDArray[np.floating], rank: int) -> NDArray[np.float64]:
    """The matrix of rank <= `rank` nearest to `rows` (k, d), float64: its truncated SVD (Eckart and Young 1936).

    Through the right singular vectors V, as the leading eigenvectors of rows^T rows: rows V V^T.
    """
    exact = np.asarray(rows, dtype=np.float64)
    if not np.isfinite(exact).all():
        raise ParameterError("an update holds values that are not finite: training diverged")
    leading = np.linalg.eigh(exact.T @ exact)[1][:, -rank:]
    return np.asarray(exact @ leading @ leading.T)


@dataclass(frozen=True)
class SVD(RowRecipe):
    """FedMF over compressed changes: N*d values of rank r and N counts a contribution."""

    parameters: SVDParameters
    name: str = "svd"

    @property
    def width(self) -> int:
        """The whole row: d."""
        return self.parameters.dim

    @property
    def factor_values(self) -> int:
        """Values of the factors U and V that the paper sends: r (N + d)."""
        p = self.parameters
        return p.rank * (p.items + p.dim)

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """None: the full matrix is trained, and compressed afterwards."""
        return None

    def contribute(self, spec: RoundSpec, client_id: str, update: Update) -> tuple[list[NDArray[np.float64]], int]:
        """The best rank-r part of the client's rows, dense, and its touch vector."""
        if update.values.ndim == 2:  # another shape is for `dense_rows` to refuse
            compressed = low_rank(update.values, self.parameters.rank).astype(np.float32)
            update = Update(update.items, compressed)
        return super().contribute(spec, client_id, update)

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        """Q += the best rank-r part of the mean change of every row."""
        return advance(state, spec, low_rank(self.mean_update(total), self.parameters.rank))
