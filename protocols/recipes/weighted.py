"""A mean of clients' vectors: all count alike or, with consent, each for its number of interactions.

FedAvg (McMahan et al., AISTATS 2017) weights client u by |D_u|: mean = sum_u w_u v_u / sum_u w_u. A client sends
w_u v_u followed by w_u = min(|D_u|, max_interactions) / max_interactions, so only the sum of the weights is released,
and a contribution keeps the bound of its vector. The cap is a difference from FedAvg. A weight is a constant of its
client: the sums of many rounds over known cohorts are equations that give every client's weight exactly. So weights
need `reveal_weights`; without, a client sends its vector alone and the mean is over the contributions.
"""

from __future__ import annotations

from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, model_validator

from protocols.errors import ParameterError
from protocols.layout import Block, Segment
from protocols.recipes.base import RecipeParameters

UPDATE: Final = "update"
"""Name of the segment that holds the vector, or weight times vector."""
WEIGHT: Final = "weight"
"""Name of the segment that holds the weight."""
WEIGHTS_WARNING: Final = (
    "Every sum shows the total weight of its clients. A client's weight is the same in every round, so whoever sees "
    "the sums of many rounds can compute each client's number of examples."
)


class WeightedParameters(RecipeParameters):
    """Parameters of the recipes whose mean may be weighted by numbers of interactions."""

    max_interactions: int | None = Field(
        default=None,
        ge=1,
        le=2**31,
        description="A client's weight is its number of interactions, capped at this value; needs reveal_weights. "
        "Unset: all clients count alike.",
    )
    reveal_weights: bool = Field(
        default=False, description="Consent to max_interactions: the sums of many rounds show every client's weight."
    )

    @model_validator(mode="after")
    def _check_weights(self, info: ValidationInfo) -> Self:
        if self.is_noisy(info):
            return self
        if self.max_interactions is not None and not self.reveal_weights:
            raise ValueError(
                "max_interactions weights clients by their numbers of interactions, which the sums of many rounds "
                "show: consent with reveal_weights=true, or leave max_interactions out"
            )
        if self.reveal_weights and self.max_interactions is None:
            raise ValueError("reveal_weights=true needs max_interactions: without it there are no weights")
        return self

    def weight_warnings(self) -> tuple[str, ...]:
        """Return what weights reveal; nothing without."""
        return (WEIGHTS_WARNING,) if self.reveal_weights else ()


def weighted_block(p: WeightedParameters, name: str, length: int, bound: float) -> Block:
    """Return a block of `length` values of at most `bound` in size and, with weights, the weight, at most 1."""
    weight = () if p.max_interactions is None else (Segment(WEIGHT, 1, 1.0),)
    return Block(name, (Segment(UPDATE, length, bound), *weight))


def weight_of(p: WeightedParameters, interactions: float | None) -> float:
    """Return w_u of a client with so many interactions, in (0, 1]; 1 without weights. `ParameterError` below 1."""
    if interactions is None or not interactions >= 1:
        raise ParameterError(f"a client takes part with at least 1 interaction, got {interactions}")
    most = p.max_interactions
    return 1.0 if most is None else min(interactions, most) / most


def weigh(p: WeightedParameters, vector: NDArray[np.floating], interactions: float | None) -> NDArray[np.float64]:
    """Return what a client sends, float64 (n,), or (n + 1,) with weights: weight * vector followed by the weight.

    vector: any shape, n values within their bound. interactions: |D_u|. Raises `ParameterError` without interactions.
    """
    values, weight = np.asarray(vector, dtype=np.float64).ravel(), weight_of(p, interactions)
    return values if p.max_interactions is None else np.append(weight * values, weight)


def with_weight(p: WeightedParameters, total: NDArray[np.float64], contributions: int) -> NDArray[np.float64]:
    """Return a sum of vectors made by `weigh` followed by the sum of the weights, float64 (n + 1,)."""
    return total if p.max_interactions is not None else np.append(total, float(contributions))


def weighted_mean(weighted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted mean, float64 (n,), of a sum in the form of `with_weight`, float64 (n + 1,).

    An error of e in every value of the sum is an error of e / (sum of the weights) in the mean. Raises `ParameterError`
    if the sum of the weights is not positive: the sum holds no contribution.
    """
    if weighted.size < 2 or not weighted[-1] > 0:
        raise ParameterError("a weighted mean needs at least one value and a positive sum of weights as the last value")
    return np.asarray(weighted[:-1] / weighted[-1])
