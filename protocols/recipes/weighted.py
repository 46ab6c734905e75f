"""A mean weighted by the amount of data per client, as one sum: weight times vector, followed by the weight.

FedAvg (McMahan et al., AISTATS 2017) weights client u by |D_u|: mean = sum_u w_u v_u / sum_u w_u. A server that weights
plain vectors learns every |D_u|. Here the client multiplies its vector by its weight and appends the weight to the
contribution, so that only the sum of the weights is released. The weight is min(|D_u|, max_interactions) /
max_interactions: it is at most 1, so a contribution keeps the bound of its vector, and one client counts for at most
max_interactions interactions. This cap is a difference from FedAvg.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import Block, Segment

__all__ = ["UPDATE", "WEIGHT", "weigh", "weight_of", "weighted_block", "weighted_mean"]

UPDATE: Final = "update"
"""Name of the segment that holds weight times vector."""
WEIGHT: Final = "weight"
"""Name of the segment that holds the weight."""


def weighted_block(name: str, length: int, bound: float) -> Block:
    """Return a block of `length` weighted values of at most `bound` in size, followed by the weight, at most 1."""
    return Block(name, (Segment(UPDATE, length, bound), Segment(WEIGHT, 1, 1.0)))


def weight_of(interactions: int, max_interactions: int) -> float:
    """Return min(interactions, max_interactions) / max_interactions, in (0, 1].

    Raises `ParameterError` if either argument is below 1.
    """
    if interactions < 1:
        raise ParameterError(f"a client's weight is its number of interactions, at least 1, got {interactions}")
    if max_interactions < 1:
        raise ParameterError(f"max_interactions must be at least 1, got {max_interactions}")
    return min(interactions, max_interactions) / max_interactions


def weigh(vector: NDArray[np.floating], weight: float) -> NDArray[np.float64]:
    """Return weight * vector followed by the weight, float64 (vector.size + 1,): what a client sends.

    vector: any shape, its values within their bound. Raises `ParameterError` unless 0 < weight <= 1.
    """
    if not 0 < weight <= 1:
        raise ParameterError(f"a weight must lie in (0, 1], got {weight}")
    return np.append(weight * np.asarray(vector, dtype=np.float64).ravel(), weight)


def weighted_mean(total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted mean, float64 (length - 1,), of a sum of vectors made by `weigh`, float64 (length,).

    An error of e in every value of the sum is an error of e / (sum of the weights) in the mean. Raises `ParameterError`
    if the sum of the weights is not positive: the sum holds no contribution.
    """
    if total.size < 2 or not total[-1] > 0:
        raise ParameterError("a weighted mean needs at least one value and a positive sum of weights as the last value")
    return np.asarray(total[:-1] / total[-1])
