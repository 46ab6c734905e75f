"""Server optimisers: what the mean update of a round is given to.

| name | step, with the mean update D and step size eta |
|---|---|
| mean | x + eta D (FedAvg for eta = 1: McMahan et al., AISTATS 2017) |
| momentum | m = b1 m + D, x + eta m (FedAvgM: Hsu, Qi and Brown, 2019) |
| adam | m = b1 m + (1 - b1) D, v = b2 v + (1 - b2) D^2, x + eta m / (sqrt(v) + tau) |
| yogi | m as adam, v = v - (1 - b2) D^2 sign(v - D^2), x as adam |

Adam and Yogi are those of Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2: without bias
correction, v begins at tau^2. Only +, -, *, / and square roots of float64 are used, whose results IEEE 754 fixes to the
last bit, so that members who replay the aggregates all have the same state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocols.recipes.arrays.parameters import ArraysParameters

__all__ = ["Piece", "step"]

Piece = NDArray[np.float32]


def step(p: ArraysParameters, values: Piece, first: Piece, second: Piece, update: NDArray[np.float64]) -> None:
    """Change `values`, `first` and `second` in place by one step with the mean `update`; all of one length.

    first, second: (0,) where the optimiser has none. Results are rounded to float32.
    """
    if p.optimiser == "mean":
        values[:] = values + p.server_rate * update
        return
    m = p.momentum * first.astype(np.float64)
    m += update if p.optimiser == "momentum" else (1.0 - p.momentum) * update
    first[:] = m
    if p.optimiser == "momentum":
        values[:] = values + p.server_rate * m
        return
    v, square = second.astype(np.float64), update * update
    if p.optimiser == "adam":
        v = p.second_momentum * v + (1.0 - p.second_momentum) * square
    else:
        v -= (1.0 - p.second_momentum) * square * np.sign(v - square)
    second[:] = v
    values[:] = values + p.server_rate * m / (np.sqrt(v) + p.adaptivity)
