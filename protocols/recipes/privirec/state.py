"""PriviRec's model state (the results of the sums so far) and its encoding.

sum index         uint32
from sum 1 on     item degrees (m uint32) || clients (uint32) || Q (m x K float32, row-major)
                  || singular values (K float32) || captured, change (float64 each)
after a Gram sum  the upper triangle of P (m (m+1) / 2 float32)

All little-endian. The sum index determines the length.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.recipes.base import ModelState, RoundSpec

__all__ = [
    "PriviRecState",
]


def _empty_array(*shape: int) -> Any:
    return field(default_factory=lambda: np.zeros(shape, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class PriviRecState(ModelState):
    """The results of `sum_index` sums; arrays are empty before their sum.

    item_degrees: float64 (m,), whole numbers. clients: how many clients they were summed over. basis: Q, float32
    (m, K), orthonormal columns. singular_values: float32 (K,), of R~, zeros before the first iteration. captured:
    ||Q_old^T Q_new||_F^2 / K of the last iteration. change: relative change of the singular values in it. gram: float32
    (m (m+1) / 2,), P's upper triangle.
    """

    sum_index: int = 0
    item_degrees: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    clients: int = 0
    basis: NDArray[np.float32] = _empty_array(0, 0)
    singular_values: NDArray[np.float32] = _empty_array(0)
    captured: float = 0.0
    change: float = 1.0
    gram: NDArray[np.float32] = _empty_array(0)

    def following(self, spec: RoundSpec, **changes: Any) -> PriviRecState:
        """Return the state after the sum of `spec`, with these fields changed."""
        return replace(self, round_number=spec.number, sum_index=spec.sum_index, **changes)
