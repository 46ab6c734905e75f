"""FedMF: the whole change of the item factors is summed. It is the baseline that CoLR compresses.

Chai et al., "Secure Federated Matrix Factorization" (2019), with the aggregation of the released CoLR code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.factors import FactorParameters, advance
from protocols.recipes.rows import RowRecipe

__all__ = ["FedMF", "FedMFParameters"]


class FedMFParameters(FactorParameters):
    """FedMF has no parameters beyond the shape and clip of the item factors."""


@dataclass(frozen=True)
class FedMF(RowRecipe):
    """Full item factors: N*d values and N counts per contribution."""

    parameters: FedMFParameters
    name: str = "fedmf"

    @property
    def width(self) -> int:
        """Values per item in a contribution: d, the complete row."""
        return self.parameters.dim

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return None: the full matrix is trained."""
        return None

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        """Return the state after Q[i] += sum of the changes of row i / number of clients that touched i."""
        return advance(state, spec, self.mean_update(total))
