"""One client's training in one round, whatever the recipe: full item rows, or a low-rank change of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.lowrank import train_lowrank
from client_sdk.training.mf import LocalUpdate, MFConfig, train_full

__all__ = ["train_locally"]


def train_locally(
    projection: NDArray[np.float32] | None,
    item_factors: NDArray[np.float32],
    user_factor: NDArray[np.float32],
    positives: NDArray[np.int32],
    config: MFConfig,
    rng: np.random.Generator,
    excluded: NDArray[np.int32] | None = None,
) -> LocalUpdate:
    """Train on `positives` (k,) from item factors (items, dim) and the client's own factor (dim,); neither is changed.

    The recipe's projection decides what is trained: None means full rows (FedMF), a matrix B (rank, dim) means the
    low-rank factor A (CoLR, SCoLR). `excluded` items are never drawn as negatives; see `client_sdk.training.negatives`.
    """
    n_items = item_factors.shape[0]
    if projection is None:
        return train_full(item_factors, user_factor, positives, n_items, config, rng, excluded)
    return train_lowrank(item_factors, user_factor, projection, positives, n_items, config, rng, excluded)
