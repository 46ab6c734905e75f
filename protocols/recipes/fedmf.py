"""FedMF, the whole change of the item factors, and its compression by SVD.

**FedMF**: the whole change of the item factors is summed. It is the baseline that CoLR compresses.

Chai et al., "Secure Federated Matrix Factorization" (2019), with the aggregation of the released CoLR code.

**SVD** compression: a baseline of the CoLR paper. Clients train FedMF's full change and keep its best rank-r part.

Nguyen et al. (WWW 2024), section 3.2: the client sends factors U_u (items x r) and V_u (r x dim) of its change. The
server adds the products U_u V_u and compresses the sum again for the download, as the released code does. A sum of
products is not a product of sums, so each client's factors must be multiplied before they are added. This is not
possible with ciphertexts, and the SVD of an encrypted sum is an open problem (appendix C). The recipe therefore needs
plain sums.

Here a contribution is the dense product U_u V_u, with all its values on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.errors import ParameterError
from protocols.recipes.base import Contribution, Local, ModelState, RoundSpec, Sensitivity, Update
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.rows import NormalisedParameters, RowRecipe


class FedMFParameters(NormalisedParameters):
    """FedMF has no parameters of its own."""


@dataclass(frozen=True)
class FedMF(RowRecipe):
    """Full item factors: N*d values per contribution."""

    parameters: FedMFParameters
    name: str = "fedmf"


ENTRY: Final = RecipeEntry(
    name="fedmf",
    parameters=FedMFParameters,
    make=FedMF,
    half="client_sdk.training.factors:half",
    source="Chai et al., 2019",
)


class SVDParameters(NormalisedParameters):
    """The shape of the item factors, and the rank."""

    rank: int = Field(default=4, ge=1, description="Rank r to which each client's change and their mean are reduced.")

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        if self.rank > self.dim:
            raise ValueError(f"rank {self.rank} is greater than dim {self.dim}: nothing would be compressed")
        return self


def low_rank(rows: NDArray[np.floating], rank: int) -> NDArray[np.float64]:
    """Return the matrix of rank <= `rank` nearest to `rows` (k, d), float64 (k, d): its truncated SVD.

    Eckart and Young (1936). It is rows V V^T, with V the `rank` leading eigenvectors of rows^T rows (the right singular
    vectors). Raises `ParameterError` for values that are not finite.
    """
    exact = np.asarray(rows, dtype=np.float64)
    if not np.isfinite(exact).all():
        raise ParameterError("an update holds values that are not finite: training diverged")
    leading = np.linalg.eigh(exact.T @ exact)[1][:, -rank:]
    return np.asarray(exact @ leading @ leading.T)


@dataclass(frozen=True)
class SVD(RowRecipe):
    """FedMF with compressed changes: N*d values of rank r per contribution."""

    parameters: SVDParameters
    name: str = "svd"

    def sensitivity(self, sum_index: int) -> Sensitivity:
        """Raise `ParameterError`: the recipe needs plain sums, which have no noise."""
        return super(RowRecipe, self).sensitivity(sum_index)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the best rank-r part of the client's rows (an `Update`)."""
        update = local.update
        if update.values.ndim == 2:  # `dense_rows` raises for other shapes
            compressed = low_rank(update.values, self.parameters.rank).astype(np.float32)
            local = replace(local, update=Update(update.items, compressed))
        return super().contribute(state, spec, local)

    def change(
        self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int
    ) -> NDArray[np.float64]:
        """Return the best rank-r part of the mean change of every row, float64 (items, dim)."""
        return low_rank(self.mean_update(state, total, contributions), self.parameters.rank)


SVD_ENTRY: Final = RecipeEntry(
    name="svd",
    parameters=SVDParameters,
    make=SVD,
    half="client_sdk.training.factors:half",
    needs=frozenset({"clear contributions"}),
    why_not="each client's factors U and V must be multiplied before they are added, which is not possible with "
    "encrypted or masked factors, and compressing the sum again would need the SVD of an encrypted matrix, an open "
    "problem (Nguyen et al., WWW 2024, section 3.2 and appendix C)",
    source="Nguyen et al., WWW 2024, section 3.2",
)
