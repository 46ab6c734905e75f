"""Which items follow which, in the space of a spectrum's leading vectors: what a sum of next items adds up.

SLIST's model of transitions (Choi, Kim, Lee, Shim and Lee, "Session-aware Linear Item-Item Models for Session-based
Recommendation", WWW 2021, section 4.3, SLIT: (S^T S + l I)^-1 S^T T of past and future items, with weights that decay
in both directions) for rows of V in place of items. A client has its items in the order of their times, i_1 .. i_L, and
x_i = d_i^-b V_i of the K leading vectors. With g = e^(-1/3)

    z_t = g z_(t-1) + x_(i_t)      y_t = x_(i_(t+1)) + g x_(i_(t+2)) + g^2 x_(i_(t+3))
    A_u = sum_(t<L) z_t z_t^T      C_u = sum_(t<L) z_t y_t^T

It sends both, divided by the norm of all their entries, so that every client weighs the same whatever it has: the upper
triangle of A_u and all of C_u, K (K+1) / 2 + K^2 values of a norm of at most 1. Of the sums A and C everybody computes

    M = (A + l I)^-1 C,    l = 0.03 tr(A) / K

and a device scores item j by d_j^b (z_L M V^T)_j, which is large for what follows what it had last.
"""

from __future__ import annotations

from math import ceil, exp, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.layout import Floats
from protocols.recipes.spectrum import triangle_length

_DECAY: Final = exp(-1 / 3)
_AHEAD: Final = 3
_RIDGE: Final = 0.03


def next_length(vectors: int) -> int:
    """Return how many values the sum over so many vectors has; 0 for none."""
    return triangle_length(vectors) + vectors**2


def next_equations(vectors: int, items: int) -> int:
    """Return how many equations these values are for each of so many rows of P, if they were equations in P."""
    return ceil(next_length(vectors) / max(1, items))


def places(scales: Floats, vectors: NDArray[np.floating], count: int) -> Floats:
    """Return x of all items, float64 (m, count), for D_i^-b, (m,), and V, (m, any); zeros where V has fewer columns."""
    found = np.zeros((len(vectors), count))
    used = min(count, vectors.shape[1])
    found[:, :used] = vectors[:, :used].astype(np.float64) * scales[:, None]
    return found


def trail(own: Floats) -> Floats:
    """Return z after each item, float64 (L, K), for the items' x in their order, `own` (L, K)."""
    found, last = np.empty_like(own), np.zeros(own.shape[1])
    for step, x in enumerate(own):
        last = _DECAY * last + x
        found[step] = last
    return found


def transitions(own: Floats) -> Floats:
    """Return what a client sends, float64 (K (K+1) / 2 + K^2,), for its items' x in their order, (L, K).

    Zeros for fewer than two items.
    """
    length, vectors = own.shape
    if length < 2:
        return np.zeros(next_length(vectors))
    past, following = trail(own)[:-1], np.zeros((length - 1, vectors))
    for step in range(min(_AHEAD, length - 1)):
        following[: length - 1 - step] += _DECAY**step * own[step + 1 :]
    before, after = past.T @ past, past.T @ following
    norm = sqrt(np.square(before).sum() + np.square(after).sum())
    upper = before[np.triu_indices(vectors)]
    return np.concatenate([upper, after.ravel()]) / (norm or 1.0)


def model_of(total: Floats, vectors: int, found: NDArray[np.bool_], noise: float = 0.0) -> NDArray[np.float32]:
    """Return M, float32 (K, K), of an opened sum.

    found: which vectors the model has, bool (K,); rows and columns of others are 0. noise: its deviation in a value of
    the sum. Its matrix has eigenvalues up to 2 `noise` sqrt(K) (`spectrum`), which come on top of l; eigenvalues of A
    below 0 are noise.
    """
    before, after = np.zeros((vectors, vectors)), total[triangle_length(vectors) :].reshape(vectors, vectors)
    before[np.triu_indices(vectors)] = total[: triangle_length(vectors)]
    before += np.triu(before, 1).T
    both = np.outer(found, found)
    values, rotation = np.linalg.eigh(before * both)
    values = np.maximum(values, 0.0)
    ridge = _RIDGE * float(values.sum()) / vectors + 2.0 * noise * sqrt(vectors)
    if not ridge:  # nobody's items have an order
        return np.zeros((vectors, vectors), np.float32)
    solved = rotation @ ((rotation.T @ (after * both)) / (values + ridge)[:, None])
    return np.asarray(solved * both, np.float32)
