"""Item biases from summed counts: the first sums of a task count how many clients have each item.

A factor model scores an item by b_i + p . q_i. With `item_bias` "counts" the first `count_sums` sums of a task are
counts, one 0 or 1 per item and client, under the task's own mechanism, and b follows from their total:

    b_i = ln((c_i + 1) / (mean(c) + 1))

This is the log-odds of a positive against a uniformly drawn negative in a model that knows popularity only, up to the
number of negatives per positive, which the client subtracts. Round 0 therefore ranks by popularity, and training only
has to learn what differs from it. A client is in one sum of counts only, and abstains from the others; only plain sums
may count more than once (`protocols.combinations`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocols.layout import Block, Segment, VectorLayout
from protocols.recipes.base import FactorState, ModelState, RoundSpec, check_follows
from protocols.recipes.factors import FactorParameters
from protocols.sum_classes import ONCE_ROWS

__all__ = [
    "BiasedParameters",
    "CountedFactors",
    "ItemBias",
    "StartFrom",
    "count_layout",
    "item_biases",
]

ItemBias = Literal["counts", "none"]
"""Where b_i comes from: the first sums of the task, or nowhere (b = 0), as in the papers."""


class StartFrom(BaseModel):
    """The state of round 0 of a task that starts from another task's model: `protocols.recipes.spectral_start`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(min_length=1, max_length=63, description="Id of the `privirec-k` task.")
    round: int = Field(ge=1, description="Round of its snapshot.")
    snapshot: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha-256 of that snapshot, hex.")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha-256 of the state of round 0 made from it, hex.")
    item_exponent: float = Field(
        ge=0, le=0.5, description="b of the `privirec-k` task, by which devices weight their items: d_i^-2b."
    )


class BiasedParameters(FactorParameters):
    """Parameters of the recipes that score b_i + p . q_i, and the settings of local training.

    A training setting that is not set is the client's own choice, by default the paper's.
    """

    item_bias: ItemBias = Field(
        default="none", description="counts: item biases from summed item counts. none: as in the paper."
    )
    count_sums: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="With item_bias counts: how many of the first sums are item counts; 1 unless sums are plain.",
    )
    server_rate: float = Field(
        default=1.0, gt=0, le=100, description="Factor by which the mean change of the item factors is multiplied."
    )
    learning_rate: float | None = Field(default=None, gt=0, le=100, description="Step size of local training.")
    epochs: int | None = Field(default=None, ge=1, le=1000, description="Passes over a client's samples in a round.")
    batch_size: int | None = Field(default=None, ge=1, le=1_000_000, description="Samples in one step.")
    weight_decay: float | None = Field(default=None, ge=0, le=10, description="L2 weight on both factors.")
    negatives: int | None = Field(default=None, ge=1, le=1000, description="Negatives drawn for each positive.")

    start_from: StartFrom | None = Field(
        default=None, description="The model that round 0 is made from; unset: from the task's seed."
    )
    start_weight: float = Field(
        default=16.0, gt=0, le=1e6, description="With start_from: factor c of the user factors that devices compute."
    )

    @model_validator(mode="after")
    def _start_has_counts(self) -> Self:
        if self.start_from is not None and self.item_bias != "counts":
            raise ValueError("start_from needs item_bias 'counts': the counts come from the same task")
        return self

    def training_settings(self) -> dict[str, float | int]:
        """Return the training settings that the task sets, by name."""
        names = ("learning_rate", "epochs", "batch_size", "weight_decay", "negatives")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def start_digest(self) -> str | None:
        """See `RecipeParameters`."""
        return None if self.start_from is None else self.start_from.digest

    @property
    def counting(self) -> int:
        """Number of first sums that are item counts; 0 without item biases, and with those of another task."""
        return self.count_sums if self.has_counts and self.start_from is None else 0

    @property
    def has_counts(self) -> bool:
        """Whether the model has item biases."""
        return self.item_bias == "counts"


@dataclass(frozen=True)
class CountedFactors(FactorState):
    """Item factors and, from the first sums, how many of how many clients have each item.

    item_counts: float64 (items,), whole numbers. clients: number of clients that were counted.
    """

    item_counts: NDArray[np.float64]
    clients: int

    @cached_property
    def biases(self) -> NDArray[np.float32]:
        """b, float32 (items,), read-only: the logarithms of the counts over their mean, both plus one."""
        counts = self.item_counts
        found = np.asarray(np.log((counts + 1.0) / (counts.mean() + 1.0)), dtype=np.float32)
        found.flags.writeable = False
        return found

    def counted(self, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> Self:
        """Return the state after a sum of counts. Counts outside 0..contributions are moved to the nearest bound.

        Raises `ParameterError` if `spec` is of this state's round or an earlier one.
        """
        check_follows(self, spec)
        # a sum of honest clients has no count outside 0..contributions
        counts = self.item_counts + np.clip(np.rint(total), 0, contributions)
        return replace(self, round_number=spec.number, item_counts=counts, clients=self.clients + contributions)


@lru_cache(maxsize=16)
def count_layout(items: int) -> VectorLayout:
    """Return the layout of a sum of counts: one block of `items` counts, each 0 or 1 in a contribution."""
    return VectorLayout((Block("counts", (Segment("counts", items, 1.0, integral=True),)),), sum_class=ONCE_ROWS)


def item_biases(state: ModelState) -> NDArray[np.float32] | None:
    """Return b, float32 (items,), read-only; None if the model has no item biases."""
    return state.biases if isinstance(state, CountedFactors) else None
