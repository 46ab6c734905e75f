"""CoLR: clients train and send a low-rank factor of the change of the item factors.

Nguyen et al., "Towards Efficient Communication and Secure Federated Recommendation System via Low-rank Training"
(WWW 2024), eq. 5 to 7: Delta Q = A B with B (r x d) shared and frozen, A (N x r) trained from zero and summed.
B is redrawn each round and broadcast as 32 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.crypto.public_random import normals
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.entry import RecipeEntry
from protocols.recipes.normalisation import NormalisedParameters
from protocols.recipes.rows import RowRecipe

__all__ = ["ENTRY", "CoLR", "CoLRParameters", "shared_projection"]


class CoLRParameters(NormalisedParameters):
    """CoLR's parameters: the shape of the item factors and the rank."""

    rank: int = Field(default=4, ge=1, description="Rank r of the change: clients send N*r values instead of N*d.")

    @model_validator(mode="after")
    def _rank_fits(self) -> Self:
        if self.rank > self.dim:
            raise ValueError(f"rank {self.rank} is greater than dim {self.dim}: nothing would be compressed")
        return self


@lru_cache(maxsize=8)
def shared_projection(seed: bytes, rank: int, dim: int) -> NDArray[np.float32]:
    """Return B, float32 (rank, dim), read-only: orthonormal rows times sqrt(dim/rank), from the round's public seed.

    The newest are kept, because all clients of a process need the same one in a round.

    The released code draws N(0,1), takes the SVD and keeps U V^T sqrt(d/r) ("orthnorm"); the paper's theory has
    i.i.d. N(0, 1/r) entries. Both have E[B^T B] = I.
    """
    left, _, right = np.linalg.svd(normals(seed, "projection", rank * dim).reshape(rank, dim), full_matrices=False)
    projection = np.asarray(left @ right * np.sqrt(dim / rank), dtype=np.float32)
    projection.flags.writeable = False
    return projection


@dataclass(frozen=True)
class CoLR(RowRecipe):
    """Low-rank change: N*r values per contribution."""

    parameters: CoLRParameters
    name: str = "colr"

    @property
    def width(self) -> int:
        """r: a row of A."""
        return self.parameters.rank

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return B of this round, the same for every client."""
        return shared_projection(spec.seed, self.parameters.rank, self.parameters.dim)

    def change(
        self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int
    ) -> NDArray[np.float64]:
        """Return A B, float64 (items, dim), with A the mean of the clients' A_u."""
        projection = shared_projection(spec.seed, self.parameters.rank, self.parameters.dim)
        return np.asarray(self.mean_update(state, total, contributions) @ projection.astype(np.float64))


ENTRY: Final = RecipeEntry(
    name="colr",
    parameters=CoLRParameters,
    make=CoLR,
    half="client_sdk.training.factors:half",
    source="Nguyen et al., WWW 2024, eq. 5 to 7",
)
