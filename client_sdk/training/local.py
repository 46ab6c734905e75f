"""One client's training in one round, whatever the recipe: full item rows, or a low-rank change of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.lowrank import train_lowrank
from client_sdk.training.mf import LocalUpdate, MFConfig, train_full
from protocols.recipes.base import ModelState, Recipe, RoundSpec

__all__ = ["train_locally"]


def train_locally(
    recipe: Recipe,
    spec: RoundSpec,
    client_id: str,
    state: ModelState,
    user_factor: NDArray[np.float32],
    positives: NDArray[np.int32],
    config: MFConfig,
    rng: np.random.Generator,
    excluded: NDArray[np.int32] | None = None,
) -> LocalUpdate:
    """Train on `positives` (k,) from `state` and the client's own factor (dim,); neither is changed.

    The recipe's projection decides what is trained: None means full rows (FedMF), a matrix B (rank, dim) means the
    low-rank factor A (CoLR, SCoLR). `excluded` items are never drawn as negatives; see `client_sdk.training.negatives`.
    """
    factors = state.item_factors
    projection = recipe.projection(spec, client_id)
    if projection is None:
        return train_full(factors, user_factor, positives, factors.shape[0], config, rng, excluded)
    return train_lowrank(factors, user_factor, projection, positives, factors.shape[0], config, rng, excluded)
