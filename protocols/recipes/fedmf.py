"""FedMF: the whole change of the item factors is summed. It is the baseline that CoLR compresses.

Chai et al., "Secure Federated Matrix Factorization" (2019), with the aggregation of the released CoLR code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.entry import RecipeEntry
from protocols.recipes.normalisation import NormalisedParameters
from protocols.recipes.rows import RowRecipe

__all__ = ["ENTRY", "FedMF", "FedMFParameters"]


class FedMFParameters(NormalisedParameters):
    """FedMF has no parameters of its own."""


@dataclass(frozen=True)
class FedMF(RowRecipe):
    """Full item factors: N*d values per contribution."""

    parameters: FedMFParameters
    name: str = "fedmf"

    @property
    def width(self) -> int:
        """Values per item in a contribution: d, the complete row."""
        return self.parameters.dim

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return None: the full matrix is trained."""
        return None

    def change(
        self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int
    ) -> NDArray[np.float64]:
        """Return the mean change of each row, float64 (items, dim)."""
        return self.mean_update(state, total, contributions)


ENTRY: Final = RecipeEntry(
    name="fedmf",
    parameters=FedMFParameters,
    make=FedMF,
    half="client_sdk.training.factors:half",
    source="Chai et al., 2019",
)
