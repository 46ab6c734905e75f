"""NeuMF with one MLP layer, its BPR loss and its gradients, for one user at a time.

He et al., "Neural Collaborative Filtering" (WWW 2017), with the layers of the released FAIR code. A user has two
vectors u_g and u_m (d,), an item two rows v_g and v_m, and

    h(i) = relu(W_u^T u_m + W_v^T v_m + b),      s(i) = w_g . (u_g * v_g) + w_h . h(i)
    loss = mean over pairs (i, j) of -log sigmoid(s(i) - s(j))                      (BPR, Rendle et al., UAI 2009)

The bias of the prediction is left out, because it is the same for every item. The L2 term of 1e-6 in the released code
is left out too: by mistake, it applies to the user's MLP vector only.
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
    """The small layers, in order: W_u (d, d), W_v (d, d), b (d,), w_g (d,), w_h (d,)."""

    user_weights: Floats
    item_weights: Floats
    bias: Floats
    gmf_output: Floats
    mlp_output: Floats


def layers_of(dense: Floats, dim: int) -> Layers:
    """Return the layers as views of one vector (2 d^2 + 3 d,): MLP weights row-major, bias, prediction weights."""
    square = dim * dim
    user, item, bias, gmf, mlp = np.split(dense, np.cumsum([square, square, dim, dim]))
    return Layers(user.reshape(dim, dim), item.reshape(dim, dim), bias, gmf, mlp)


def scores(user: Floats, dense: Floats, rows: Floats) -> Floats:
    """Return s(i) (k,) of the items with `rows` (2, k, d) for a user (2, d). The first axis is GMF, MLP.

    dense: the small layers as one vector, see `layers_of`.
    """
    layers = layers_of(dense, user.shape[1])
    hidden = rows[1] @ layers.item_weights
    hidden += user[1] @ layers.user_weights + layers.bias
    np.maximum(hidden, 0, out=hidden)
    return np.asarray(rows[0] @ (user[0] * layers.gmf_output) + hidden @ layers.mlp_output)


@dataclass(frozen=True, eq=False)
class PairGradients:
    """The mean loss of a batch of pairs, and its gradients by `rows` (2, 2p, d), `user` (2, d) and `dense`."""

    loss: float
    rows: Floats
    user: Floats
    dense: Floats


def pair_gradients(user: Floats, dense: Floats, rows: Floats) -> PairGradients:
    """Return BPR loss and gradients for p pairs.

    user: (2, d). dense: the small layers as one vector. rows: (2, 2p, d), the p positives followed by their p
    negatives.
    """
    dim, pairs = user.shape[1], rows.shape[1] // 2
    layers = layers_of(dense, dim)
    grad_user = np.empty_like(user)
    grad_dense = np.empty_like(dense)
    grad_layers = layers_of(grad_dense, dim)
    scaled_user = user[0] * layers.gmf_output
    hidden = rows[1] @ layers.item_weights
    hidden += user[1] @ layers.user_weights + layers.bias
    np.maximum(hidden, 0, out=hidden)
    found = rows[0] @ scaled_user + hidden @ layers.mlp_output
    margins = found[:pairs] - found[pairs:]
    slopes = (0.5 * np.tanh(0.5 * margins) - 0.5) / pairs  # d(-log sigmoid(x)) = sigmoid(x) - 1
    grad_scores = np.concatenate([slopes, -slopes]).astype(rows.dtype, copy=False)
    grad_rows = np.empty_like(rows)
    np.multiply(grad_scores[:, None], scaled_user, out=grad_rows[0])
    grad_scaled = grad_scores @ rows[0]
    grad_user[0] = grad_scaled * layers.gmf_output
    grad_layers.gmf_output[:] = grad_scaled * user[0]
    grad_layers.mlp_output[:] = grad_scores @ hidden
    grad_hidden = grad_scores[:, None] * layers.mlp_output
    grad_hidden *= hidden > 0
    np.matmul(grad_hidden, layers.item_weights.T, out=grad_rows[1])
    grad_layers.item_weights[:] = rows[1].T @ grad_hidden
    grad_layers.bias[:] = grad_hidden.sum(axis=0)
    grad_layers.user_weights[:] = np.outer(user[1], grad_layers.bias)
    grad_user[1] = layers.user_weights @ grad_layers.bias
    return PairGradients(float(np.mean(np.logaddexp(0.0, -margins))), grad_rows, grad_user, grad_dense)
