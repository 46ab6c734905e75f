"""Training of one client in one round: of full item rows, or of a low-rank change of them."""

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
    offsets: NDArray[np.float32] | None = None,
) -> LocalUpdate:
    """Train item rows and the user factor on `positives`, int32 (k,); no argument is changed.

    projection: None to train full rows (FedMF), or a matrix B, float32 (rank, dim), to train the low-rank factor A
    (CoLR, SCoLR). item_factors: float32 (items, dim). user_factor: float32 (dim,). excluded: items that are never
    drawn as negatives; see `client_sdk.training.negatives`. offsets: added to the items' logits, float32 (items,),
    None for zeros. Raises `ParameterError` without positives and for wrong shapes.
    """
    n_items = item_factors.shape[0]
    if projection is None:
        return train_full(item_factors, user_factor, positives, n_items, config, rng, excluded, offsets)
    return train_lowrank(item_factors, user_factor, projection, positives, n_items, config, rng, excluded, offsets)
