"""Shared by the matrix-factorisation recipes: parameters, initial factors, rows of change, item biases, weighted means.

**Item biases** come from summed counts: the first sums of a task count how many clients have each item.

A factor model scores an item by b_i + p . q_i. With `item_bias` "counts" the first `count_sums` sums of a task are
counts, one 0 or 1 per item and client, under the task's own mechanism, and b follows from their total:

    b_i = ln((c_i + 1) / (mean(c) + 1))

This is the log-odds of a positive against a uniformly drawn negative in a model that knows popularity only, up to the
number of negatives per positive, which the client subtracts. Round 0 therefore ranks by popularity, and training only
has to learn what differs from it. A client is in one sum of counts only, and abstains from the others; only plain sums
may count more than once (`protocols.task_terms`).

**A mean of clients' vectors**: all count alike or, with consent, each for its number of interactions.

FedAvg (McMahan et al., AISTATS 2017) weights client u by |D_u|: mean = sum_u w_u v_u / sum_u w_u. A client sends
w_u v_u followed by w_u = min(|D_u|, max_interactions) / max_interactions, so only the sum of the weights is released,
and a contribution keeps the bound of its vector. The cap is a difference from FedAvg. A weight is a constant of its
client: the sums of many rounds over known cohorts are equations that give every client's weight exactly. So weights
need `reveal_weights`; without, a client sends its vector alone and the mean is over the contributions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import sqrt
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from protocols.crypto.random import normals
from protocols.errors import ParameterError
from protocols.layout import ONCE_ROWS, Block, Floats, Segment, VectorLayout, check_finite, clip_to_bounds, norm_of
from protocols.privacy.laplace import LaplaceNoise
from protocols.recipes.base import (
    Clip,
    Contribution,
    FactorState,
    ItemParameters,
    ModelState,
    RecipeParameters,
    RoundSpec,
    Update,
    check_follows,
)
from protocols.recipes.bounds import noise_level
from protocols.recipes.state import state_as

MAX_DIM: Final = 4096
_ROWS: Final = 1024


class FactorParameters(ItemParameters):
    """Parameters of every recipe that learns item factors Q of shape (items, dim)."""

    dim: int = Field(default=64, ge=1, le=MAX_DIM, description="Length d of a factor.")
    clip: Clip = Field(default=4.0, description="Bound on each uploaded value; what exceeds it is clipped and counted.")


def initial_factors(task_seed: bytes, items: int, dim: int) -> NDArray[np.float32]:
    """Return Q of round 0, float32 (items, dim), entries N(0, 1/dim), from the task's seed (released CoLR code)."""
    flat = normals(task_seed, "initial item factors", items * dim)
    flat /= np.sqrt(dim)
    return np.asarray(flat.reshape(items, dim), dtype=np.float32)


def dense_rows(update: Update, items: int, width: int) -> tuple[Floats, Floats]:
    """Return the update's rows scattered to float64 (items, width), and the touch vector, float64 (items,).

    Raises `ParameterError` if the rows do not have `width` columns, or an item is unknown or listed twice.
    """
    if update.values.shape != (update.items.size, width):
        raise ParameterError(f"an update of {update.items.size} rows x {width} was expected, got {update.values.shape}")
    if update.items.size and not (update.items.min() >= 0 and update.items.max() < items):
        raise ParameterError(f"an update names an item outside 0..{items - 1}")
    touched = np.bincount(update.items, minlength=items).astype(np.float64)
    if touched.max(initial=0) > 1:
        raise ParameterError("an update lists an item twice")
    rows = np.zeros((items, width))
    rows[update.items] = update.values
    return rows, touched


def bounded(update: Update, p: BiasedParameters) -> tuple[Update, int, float]:
    """Return an update whose values are at most `clip`, scaled as a whole where its rows are longer than `row_clip`.

    Also returns how many values were clipped, and the factor. The items of a client move its rows by about as much,
    whichever they are. A model that a server made up can move those of one client much farther, so that a sum shows
    them: the bound limits what a client adds to little more than honest training needs. Raises `ParameterError` for
    values that are not finite: training diverged.
    """
    check_finite(update.values, "an update")
    values = update.values.astype(np.float64)
    clipped = int(np.count_nonzero(np.abs(values) > p.clip))
    np.clip(values, -p.clip, p.clip, out=values)
    norm, longest = norm_of(values), p.row_clip * float(np.sqrt(update.items.size))
    scaled = 1.0 if norm <= longest else longest / norm
    if not clipped and scaled == 1.0:
        return update, 0, 1.0
    return Update(update.items, (values * scaled).astype(np.float32)), clipped, scaled


def clip_blocks(blocks: tuple[Block, ...], vectors: list[Floats]) -> Contribution:
    """Return the contribution of these vectors, each clipped to its block's bounds."""
    pairs = [clip_to_bounds(block, vector) for block, vector in zip(blocks, vectors, strict=True)]
    return Contribution([vector for vector, _ in pairs], sum(clipped for _, clipped in pairs))


def noise_warning(noise: LaplaceNoise, values: int) -> str:
    """Return the warning of a recipe whose clients add `noise` to each of so many values."""
    return (
        f"local differential privacy of this task costs epsilon {noise.epsilon:g} for each uploaded value and "
        f"{noise.epsilon * values:,.0f} for the {values:,} values of one round, and adds up over rounds"
    )


def advance(state: ModelState, spec: RoundSpec, change: Floats, rate: float = 1.0) -> FactorState:
    """Return the state after round `spec.number`: item factors plus `rate * change` (items, dim), rounded to float32.

    Raises `ParameterError` if `state` is already of this round or a later one.
    """
    check_follows(state, spec)
    own = state_as(state, FactorState)
    before = own.item_factors
    moved = np.empty(before.shape, np.float32)
    for start in range(0, len(before), _ROWS):  # a few rows at a time: float64 sums of all would be the most memory
        rows = slice(start, start + _ROWS)
        moved[rows] = before[rows] + rate * change[rows]
    return replace(own, round_number=spec.number, item_factors=moved)


class StartFrom(BaseModel):
    """The state of round 0 of a task that starts from another task's model: `protocols.recipes.spectral_start`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(min_length=1, max_length=63, description="Id of the earlier task.")
    round: int = Field(ge=1, description="Round of its snapshot.")
    snapshot: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha-256 of that snapshot, hex.")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha-256 of the state of round 0 made from it, hex.")
    item_exponent: float | None = Field(
        default=None,
        ge=0,
        le=0.5,
        description="b of a `privirec-k` task, by which devices weight their items: d_i^-2b; none for item factors, "
        "with which devices go on.",
    )

    @property
    def is_spectrum(self) -> bool:
        """Whether that model is a spectrum, with item counts, and not item factors."""
        return self.item_exponent is not None


class BiasedParameters(FactorParameters):
    """Parameters of the recipes that score b_i + p . q_i, and the settings of local training.

    A training setting that is not set is the client's own choice, by default the paper's.
    """

    item_bias: Literal["counts", "none"] = Field(
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
    row_clip: Clip = Field(
        default=2.0,
        description="Bound on the root mean square of the L2 norms of an update's rows; a longer update is scaled down "
        "as a whole.",
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
        if self.start_from is not None and self.start_from.is_spectrum and self.item_bias != "counts":
            raise ValueError("start_from needs item_bias 'counts': the counts come from the same task")
        return self

    @property
    def longest_update(self) -> float:
        """Bound on the L2 norm of an update, whichever items it is of: see `bounded`."""
        return self.row_clip * sqrt(self.items)

    def training_settings(self) -> dict[str, Any]:
        """Return the training settings that the task sets, by name."""
        names = {"learning_rate", "buffer_learning_rate", "epochs", "batch_size", "weight_decay", "negatives"}
        return self.model_dump(include=names, exclude_none=True)

    @property
    def start_digest(self) -> str | None:
        return None if self.start_from is None else self.start_from.digest

    @property
    def counting(self) -> int:
        """Number of first sums that are item counts; 0 without item biases, and with those of another task."""
        counted = self.start_from is not None and self.start_from.is_spectrum
        return self.count_sums if self.has_counts and not counted else 0

    @property
    def has_counts(self) -> bool:
        """Whether the model has item biases."""
        return self.item_bias == "counts"


@dataclass(frozen=True)
class CountedFactors(FactorState):
    """Item factors and, from the first sums, how many of how many clients have each item."""

    item_counts: Floats
    """float64 (items,), whole numbers."""
    clients: int
    """Number of clients that were counted."""

    @cached_property
    def biases(self) -> NDArray[np.float32]:
        """b, float32 (items,), read-only: the logarithms of the counts over their mean, both plus one."""
        counts = self.item_counts
        found = np.asarray(np.log((counts + 1.0) / (counts.mean() + 1.0)), dtype=np.float32)
        found.flags.writeable = False
        return found

    def counted(self, spec: RoundSpec, total: Floats, contributions: int) -> Self:
        """Return the state after a sum of counts. Counts outside 0..contributions are moved to the nearest bound.

        With noise the lower bound is the level of the noise, so that the biases of rare items are not noise. Raises
        `ParameterError` if `spec` is of this state's round or an earlier one.
        """
        check_follows(self, spec)
        # a sum of honest clients has no count outside 0..contributions
        least = min(np.ceil(noise_level(spec.noise)), contributions)
        counts = self.item_counts + np.clip(np.rint(total), least, contributions)
        return replace(self, round_number=spec.number, item_counts=counts, clients=self.clients + contributions)


@lru_cache(maxsize=16)
def count_layout(items: int) -> VectorLayout:
    """Return the layout of a sum of counts: one block of `items` counts, each 0 or 1 in a contribution."""
    return VectorLayout((Block("counts", (Segment("counts", items, 1.0, integral=True, row=1),)),), sum_class=ONCE_ROWS)


def item_biases(state: ModelState) -> NDArray[np.float32] | None:
    """Return b, float32 (items,), read-only; None if the model has no item biases."""
    return state.biases if isinstance(state, CountedFactors) else None


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


def weighted_block(
    p: WeightedParameters, name: str, rows: int, row: int, bound: float, norm: float | None = None
) -> Block:
    """Return a block of rows of values of at most `bound` in size and, with weights, the weight, at most 1.

    norm: bound on the L2 norm of the values, None without one.
    """
    weight = () if p.max_interactions is None else (Segment("weight", 1, 1.0),)
    return Block(name, (Segment("update", rows * row, bound, norm=norm, row=row), *weight))


def weight_of(p: WeightedParameters, interactions: float | None) -> float:
    """Return w_u of a client with so many interactions, in (0, 1]; 1 without weights. `ParameterError` below 1."""
    if interactions is None or not interactions >= 1:
        raise ParameterError(f"a client takes part with at least 1 interaction, got {interactions}")
    most = p.max_interactions
    return 1.0 if most is None else min(interactions, most) / most


def weigh(p: WeightedParameters, vector: NDArray[np.floating], interactions: float | None) -> Floats:
    """Return what a client sends, float64 (n,), or (n + 1,) with weights: weight * vector followed by the weight.

    vector: any shape, n values within their bound. interactions: |D_u|. Raises `ParameterError` without interactions.
    """
    values, weight = np.asarray(vector, dtype=np.float64).ravel(), weight_of(p, interactions)
    return values if p.max_interactions is None else np.append(weight * values, weight)


def with_weight(p: WeightedParameters, total: Floats, contributions: int) -> Floats:
    """Return a sum of vectors made by `weigh` followed by the sum of the weights, float64 (n + 1,)."""
    return total if p.max_interactions is not None else np.append(total, float(contributions))


def weighted_mean(weighted: Floats) -> Floats:
    """Return the weighted mean, float64 (n,), of a sum in the form of `with_weight`, float64 (n + 1,).

    An error of e in every value of the sum is an error of e / (sum of the weights) in the mean. Raises `ParameterError`
    if the sum of the weights is not positive: the sum holds no contribution.
    """
    if weighted.size < 2 or not weighted[-1] > 0:
        raise ParameterError("a weighted mean needs at least one value and a positive sum of weights as the last value")
    return np.asarray(weighted[:-1] / weighted[-1])
