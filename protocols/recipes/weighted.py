"""A mean weighted by how much data each client has, as one sum: weight times vector, and the weight beside it.

FedAvg (McMahan et al., AISTATS 2017) weights client u by |D_u|: mean = sum_u w_u v_u / sum_u w_u. Whoever adds up plain
vectors learns every |D_u|; here the client multiplies by itself, and its weight is one more value of the contribution,
so that nobody learns a weight but of the sum. The weight is |D_u| / max_interactions, held to 1 at most: all values of
a contribution keep the bound of its vector, and one client counts for no more than max_interactions interactions.
Holding it is a difference from FedAvg that a task states by its parameter; `weight_of` says where it begins.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Block, Segment

__all__ = ["UPDATE", "WEIGHT", "weigh", "weight_of", "weighted_block", "weighted_mean"]

UPDATE: Final = "update"
"""Segment of weight times vector."""
WEIGHT: Final = "weight"
"""Segment of the one weight."""


def weighted_block(name: str, length: int, bound: float) -> Block:
    """`length` values of at most `bound` in size, times the weight, and the weight, of at most 1, as the last value."""
    return Block(name, (Segment(UPDATE, length, bound), Segment(WEIGHT, 1, 1.0)))


def weight_of(interactions: int, max_interactions: int) -> float:
    """min(interactions, max_interactions) / max_interactions, in (0, 1]; `ParameterError` without interactions."""
    if interactions < 1:
        raise ParameterError(f"a client's weight is its number of interactions, at least 1, got {interactions}")
    if max_interactions < 1:
        raise ParameterError(f"max_interactions must be at least 1, got {max_interactions}")
    return min(interactions, max_interactions) / max_interactions


def weigh(vector: NDArray[np.floating], weight: float) -> NDArray[np.float64]:
    """What a client sends for `vector`, any shape, float64 (vector.size + 1,): weight * vector, and the weight.

    `vector` must be within its bound already. Raises `ParameterError` unless 0 < weight <= 1.
    """
    if not 0 < weight <= 1:
        raise ParameterError(f"a weight must lie in (0, 1], got {weight}")
    return np.append(weight * np.asarray(vector, dtype=np.float64).ravel(), weight)


def weighted_mean(total: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean (length - 1,) of the vectors in a sum of `weigh`'s, float64 (length,).

    An error of e in every value of the sum is one of e / (sum of the weights) in the mean. Raises `ParameterError` when
    the summed weight is not positive: no contribution is in the sum.
    """
    if total.size < 2 or not total[-1] > 0:
        raise ParameterError("a weighted mean needs values and a positive sum of weights after them")
    return np.asarray(total[:-1] / total[-1])
