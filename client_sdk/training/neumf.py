"""NeuMF with one MLP layer, its BPR loss and its gradients, for one user at a time.

He et al., "Neural Collaborative Filtering" (WWW 2017), in the size of the released FAIR code: a user has two vectors
u_g and u_m (d,), an item two rows v_g and v_m, and

    h(i) = relu(W_u^T u_m + W_v^T v_m + b),      s(i) = w_g . (u_g * v_g) + w_h . h(i)
    loss = mean over pairs (i, j) of -log sigmoid(s(i) - s(j))                      (BPR, Rendle et al., UAI 2009)

The prediction's bias is left out: it is the same for every item. So is the released code's L2 term of 1e-6, which by a
slip weighs the user's own MLP vector alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Layers", "PairGradients", "layers_of", "pair_gradients", "scores"]

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Layers:
    """Views of the small layers: W_u (d, d), W_v (d, d), b (d,), w_g (d,), w_h (d,)."""

    user_weights: Floats
    item_weights: Floats
    bias: Floats
    gmf_output: Floats
    mlp_output: Floats


def layers_of(dense: Floats, dim: int) -> Layers:
    """The layers as they lie in one vector (2 d^2 + 3 d,): MLP weights row-major, bias, prediction weights."""
    square = dim * dim
    user, item, bias, gmf, mlp = np.split(dense, np.cumsum([square, square, dim, dim]))
    return Layers(user.reshape(dim, dim), item.reshape(dim, dim), bias, gmf, mlp)


def scores(user: Floats, dense: Floats, rows: Floats) -> Floats:
    """s(i) of items with `rows` (2, k, d), for a user (2, d): both vectors in the order GMF, MLP."""
    layers = layers_of(dense, user.shape[1])
    hidden = rows[1] @ layers.item_weights
    hidden += user[1] @ layers.user_weights + layers.bias
    np.maximum(hidden, 0, out=hidden)
    return np.asarray(rows[0] @ (user[0] * layers.gmf_output) + hidden @ layers.mlp_output)


@dataclass(frozen=True, eq=False)
class PairGradients:
    """Of the mean loss of a batch of pairs: by `rows` (2, 2p, d), `user` (2, d) and `dense`; `loss` is that mean."""

    loss: float
    rows: Floats
    user: Floats
    dense: Floats


def pair_gradients(user: Floats, dense: Floats, rows: Floats) -> PairGradients:
    """BPR over p pairs: `rows` (2, 2p, d) are those of the p positives, then of the p negatives in the same order."""
    dim, pairs = user.shape[1], rows.shape[1] // 2
    layers = layers_of(dense, dim)
    by_user = np.empty_like(user)
    by_dense = np.empty_like(dense)
    by = layers_of(by_dense, dim)
    scaled_user = user[0] * layers.gmf_output
    hidden = rows[1] @ layers.item_weights
    hidden += user[1] @ layers.user_weights + layers.bias
    np.maximum(hidden, 0, out=hidden)
    found = rows[0] @ scaled_user + hidden @ layers.mlp_output
    margins = found[:pairs] - found[pairs:]
    slopes = (0.5 * np.tanh(0.5 * margins) - 0.5) / pairs  # d(-log sigmoid(x)) = sigmoid(x) - 1
    by_score = np.concatenate([slopes, -slopes]).astype(rows.dtype, copy=False)
    by_rows = np.empty_like(rows)
    np.multiply(by_score[:, None], scaled_user, out=by_rows[0])
    by_scaled = by_score @ rows[0]
    by_user[0] = by_scaled * layers.gmf_output
    by.gmf_output[:] = by_scaled * user[0]
    by.mlp_output[:] = by_score @ hidden
    by_hidden = by_score[:, None] * layers.mlp_output
    by_hidden *= hidden > 0
    np.matmul(by_hidden, layers.item_weights.T, out=by_rows[1])
    by.item_weights[:] = rows[1].T @ by_hidden
    by.bias[:] = by_hidden.sum(axis=0)
    by.user_weights[:] = np.outer(user[1], by.bias)
    by_user[1] = layers.user_weights @ by.bias
    return PairGradients(float(np.mean(np.logaddexp(0.0, -margins))), by_rows, by_user, by_dense)
