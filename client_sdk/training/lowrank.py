"""Training of CoLR and SCoLR on one client: the item factors are frozen, a low-rank change of them is trained.

Nguyen et al. (WWW 2024), eq. 5: the effective row of item i is q_i + A_i B, where B (r, d) is given and A begins at
zero. The gradient of A is G B^T; the released code scales it by sqrt(r/d) in a backward hook that the paper does not
mention.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.mf import LocalUpdate, MFConfig, check_shapes, draw_samples, steps
from protocols.errors import ParameterError

__all__ = ["train_lowrank"]


def train_lowrank(
    item_factors: NDArray[np.float32],
    user_factor: NDArray[np.float32],
    projection: NDArray[np.float32],
    positives: NDArray[np.int32],
    n_items: int,
    config: MFConfig,
    rng: np.random.Generator,
    excluded: NDArray[np.int32] | None = None,
    offsets: NDArray[np.float32] | None = None,
) -> LocalUpdate:
    """Train the user factor and the rows of A that the samples use; the update's values are these rows (k, r).

    item_factors: float32 (n_items, d), not changed. projection: B, float32 (r, d); for SCoLR the rows of B for the
    client's columns, so r is the client's own rank. offsets: added to the items' logits, float32
    (n_items,). Raises `ParameterError` if the shapes do not match, without positives, and if there is no negative.
    """
    rank, dim = projection.shape
    if item_factors.shape[1] != dim:
        raise ParameterError(f"a projection to {dim} values does not match factors of {item_factors.shape[1]}")
    check_shapes(item_factors, user_factor, n_items)
    samples = draw_samples(positives, n_items, config.negatives, rng, excluded)
    rows, user = item_factors[samples.items], user_factor.copy()
    low = np.zeros((samples.items.size, rank), dtype=np.float32)
    rate = np.float32(config.learning_rate * np.sqrt(rank / dim))
    decay = np.float32(2 * config.weight_decay)
    losses: list[float] = []
    fixed = None if offsets is None else offsets[samples.items]
    for epoch, step in steps(samples, rows, user, config, rng, fixed):
        before = rows.take(step.rows, axis=0)
        change = step.residuals[:, None] * (projection @ user)
        change += decay * (before @ projection.T)
        change *= -rate
        low[step.rows] += change
        before += change @ projection
        rows[step.rows] = before
        user -= step.user_step
        if epoch == config.epochs - 1:
            losses.append(step.loss)
    return LocalUpdate(user, samples.items, low, float(np.mean(losses)), samples.rows.size)
