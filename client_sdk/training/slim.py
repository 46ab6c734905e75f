"""SLIM (Ning and Karypis, ICDM 2011): sparse item-item weights, from the item-item matrix alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.graph_filters import Components, Filter, scaled
from protocols.errors import ParameterError
from protocols.recipes.validation import Setting

if TYPE_CHECKING:
    from client_sdk.training.graph_filters import Matrix

_ITERATIONS: Final = 15
_STEP: Final = 3.0
"""Of ADMM, in means of the diagonal."""
_RELAXATION: Final = np.float32(1.8)
"""Boyd et al., "Distributed Optimization ..." (2011), section 3.4.3: half as many steps as with 1."""


def slim(gram: NDArray[np.float32], squares: float, sizes: float) -> NDArray[np.float32]:
    """Return B, float32 (m, m): B >= 0 with a zero diagonal that minimises
    1/2 tr (I - B)^T G (I - B) + squares/2 |B|^2 + sizes |B|_1, which is SLIM's objective for G = R^T R.

    gram: G, symmetric, float32 (m, m). Solved for all columns at once by ADMM (Steck, Dieng, Liu and Jebara, WSDM 2020,
    algorithm 1) with relaxation: 15 steps, each of one product of m x m matrices.
    """
    step = np.float32(_STEP * np.diag(gram).mean())
    inverse = np.linalg.inv(gram + (np.float32(squares) + step) * np.eye(len(gram), dtype=np.float32))
    fitted, diagonal = inverse @ gram, np.diag(inverse)
    kept, dual = np.zeros_like(gram), np.zeros_like(gram)
    for _ in range(_ITERATIONS):
        free = fitted + inverse @ (step * kept - dual)
        free -= inverse * (np.diag(free) / diagonal)
        free += (_RELAXATION - 1) * (free - kept)
        kept = np.maximum(free + (dual - np.float32(sizes)) / step, 0.0)
        np.fill_diagonal(kept, 0.0)
        dual += step * (free - kept)
    return kept


@dataclass(frozen=True)
class Slim(Filter):
    """S = X B D_i^(b + shift) with X = R D_i^-b and B of P; for components with `learned`, and any exponents."""

    setting: Setting
    user_exponent = None

    def _scorer(self, components: Components) -> Callable[[Matrix], NDArray[np.float32]]:
        if components.learned is None:
            raise ParameterError("SLIM needs the item-item matrix, which a task of privirec counts")
        down, _ = components.degree_scales(components.degree_exponent)
        _, up = components.degree_scales(components.degree_exponent + self.setting.shift)
        weights = components.learned(self.setting)
        return lambda chunk: np.asarray((scaled(chunk, down) @ weights) * up, dtype=np.float32)
