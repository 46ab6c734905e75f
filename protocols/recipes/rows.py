"""Base classes of the recipes whose model is the item factors alone; most of them send rows of change.

**Divisors.** An item's summed row of changes is divided by the clients that are expected to have touched the item.

A client touches its items in every round, and others by chance, as drawn negatives. The released CoLR code divides the
sum of a row by the number of clients that touched the item, which each contribution states. The sums of these numbers
over many rounds give the clients' items, so no contribution states them here, except with explicit consent:

    expected   n (p_i + (1 - p_i) q_i), from the public item counts of the task
    clients    n, the number of contributions
    touched    the number that the contributions state (released code); needs `reveal_touched`

p_i = c_i / C: share of the C counted clients that have item i. q_i: the chance that i is among the negatives of a
client that does not have it. A client with m items draws k m negatives in a round, independently and uniformly from the
N - m others, and trains on the same ones in all epochs, so q is about 1 - exp(-k m / (N - m)). How m is spread over the
clients is not known. If everybody had the mean number of items, sum(c) / C, q would come out 7 % too large on
MovieLens, where few clients have most of the items. With exponentially spread numbers q = k m / (N - m + k m), m the
mean; that is right within 4 % on MovieLens, FilmTrust and a Gowalla sample. Every divisor is at least 1, as in the
released code. With noise in the sums it is at least twice the deviation of the noise, and n where a task does not say:
n is public, and where few have an item, a small divisor would make a large change of the noise.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, model_validator

from protocols.errors import CodecError, ParameterError
from protocols.layout import CLIP_SLACK, TRAINED, Block, Floats, Route, Segment, VectorLayout, whole_route
from protocols.recipes.base import Contribution, FactorState, Local, ModelState, Recipe, RoundSpec
from protocols.recipes.bounds import Reach, Sensitivity, noise_level, require_within
from protocols.recipes.factors import (
    BiasedParameters,
    CountedFactors,
    advance,
    bounded,
    clip_blocks,
    count_layout,
    dense_rows,
    initial_factors,
)
from protocols.recipes.state import StateField, StateFields, as_counts, count_fields, state_as

NEGATIVES: Final = 4  # negatives drawn for each positive where a task does not say (released CoLR code)

Normalise = Literal["expected", "clients", "touched"]  # see the module

_FAR: Final = 9.0  # of a row's norm: beyond it with a chance of 1e-17
TOUCHED: Final = "touched"  # name of the segment that counts how many contributions touched each item
TOUCHED_ROWS: Final = {"normalise": "touched", "reveal_touched": True}
"""The divisor of the released code, which reveals constants of clients."""


class NormalisedParameters(BiasedParameters):
    """Parameters of the recipes whose summed rows are divided by a number of clients."""

    normalise: Normalise | None = Field(
        default=None,
        description="Divisor of an item's summed row. expected: the clients expected to have touched the item, from "
        "the item counts. clients: all contributions. touched: the clients that touched it, as in the released code; "
        "needs reveal_touched. Unset: expected with item counts, else clients.",
    )
    reveal_touched: bool = Field(
        default=False,
        description="Consent to normalise 'touched': every sum shows how many of its clients touched each item.",
    )

    @model_validator(mode="after")
    def _check_normalise(self, info: ValidationInfo) -> Self:
        if self.normalise == "expected" and not self.has_counts:
            raise ValueError("normalise 'expected' needs the item counts of item_bias 'counts'")
        if self.is_noisy(info):
            return self
        what = " and ".join(self.shows_touched())
        if what and not self.reveal_touched:
            raise ValueError(
                f"{what} shows how many clients touched each item, and the sums of many rounds show which items each "
                f"client has: consent with reveal_touched=true, or leave {what.split()[0]} out"
            )
        if self.reveal_touched and not what:
            raise ValueError("reveal_touched=true is for normalise 'touched': no sum of this task shows touched items")
        return self

    def shows_touched(self) -> tuple[str, ...]:
        """Return which parameters make the sums show touched items, as "name 'value'"."""
        return ("normalise 'touched'",) if self.normalise == "touched" else ()

    @property
    def divides_by(self) -> Normalise:
        """What an item's row is divided by: `normalise`, or what it stands for where it is not set."""
        return self.normalise or ("expected" if self.has_counts else "clients")

    def touch_warnings(self) -> tuple[str, ...]:
        """Return the warning that goes with `reveal_touched`; nothing without."""
        return (_WARNING,) if self.reveal_touched else ()


_WARNING: Final = (
    "Every sum shows how many of its clients touched each item. A client touches its own items in every round, so "
    "whoever sees the sums of many rounds can compute which items each client has."
)


def touch_segments(p: NormalisedParameters) -> tuple[Segment, ...]:
    """Return the segment of touch counts, 0 or 1 per item and client, with normalise "touched"; else nothing."""
    return (Segment(TOUCHED, p.items, 1.0, integral=True, row=1),) if p.divides_by == "touched" else ()


def expected_touches(item_counts: Floats, clients: int, negatives: int, contributions: int) -> Floats:
    """Return how many of `contributions` clients are expected to touch each item in a round, float64 (items,).

    item_counts: how many of the `clients` counted clients have each item, float64 (items,). negatives: drawn for each
    positive. Every operation is exact or rounded as IEEE 754 says, so the result is the same on every machine. Without
    counted clients it is `contributions`.
    """
    if not clients:
        return np.full(item_counts.size, float(contributions))
    has = np.minimum(item_counts / clients, 1.0)
    mean = float(item_counts.sum()) / clients
    drawn = negatives * mean
    chance = drawn / (max(item_counts.size - mean, 1.0) + drawn)
    return np.asarray(contributions * (has + (1.0 - has) * chance))


def divisors(
    p: NormalisedParameters, state: ModelState, contributions: int, touched: Floats | None, noise: float = 0.0
) -> Floats:
    """Return the divisor of each item's summed row, float64 (items,), at least 1 and `noise_level(noise)`.

    touched: the summed touch counts (items,) with normalise "touched", else None. noise: deviation of the noise in the
    sum. Raises `ParameterError` for a state without item counts where the parameters need them.
    """
    if p.divides_by == "clients" or (noise and p.normalise is None):
        found = np.full(p.items, float(contributions))
    elif touched is not None:
        found = touched
    else:
        own = state_as(state, CountedFactors)
        found = expected_touches(own.item_counts, own.clients, p.negatives or NEGATIVES, contributions)
    return np.asarray(np.maximum(found, max(1.0, noise_level(noise))))


def most_of_mean(p: NormalisedParameters, state: ModelState, reach: Reach) -> Floats | float:
    """Return how many times larger than a contribution's the mean row of an item can be, (items,) or one number."""
    if p.divides_by == "clients" or (reach.largest is not None and p.normalise is None):
        return reach.of_mean
    if p.divides_by == "touched":
        return float(reach.most)
    return reach.most / divisors(p, state, reach.fewest, None)


class FactorModel(Recipe):
    """A recipe whose model is the item factors alone: initial state, encoding, and defaults for the rest."""

    parameters: BiasedParameters

    state_class = FactorState
    can_start: ClassVar[bool] = True
    """Whether a task can start from a model of another one, and another one from its."""

    @property
    def main_sum(self) -> int:
        return 1 + self.parameters.counting

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        return count_layout(self.parameters.items) if sum_index <= self.parameters.counting else self.changes

    @abstractmethod
    def change_layout(self) -> VectorLayout:
        """Return the layout of a sum of changes, the same for all of them; asked once, see `changes`."""

    @cached_property
    def changes(self) -> VectorLayout:
        """The layout of a sum of changes: each upload of a round asks for it."""
        return self.change_layout()

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        return self._routes[spec.sum_index > self.parameters.counting]

    @cached_property
    def _routes(self) -> tuple[Route, Route]:
        """The routes of a sum of item counts, and of a sum of changes: each upload of a round asks for one."""
        return whole_route(count_layout(self.parameters.items)), whole_route(self.changes)

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ModelState:
        if spec.sum_index <= self.parameters.counting:
            return state_as(state, CountedFactors).counted(spec, total, contributions)
        return advance(state, spec, self.change(state, spec, total, contributions), self.parameters.server_rate)

    @abstractmethod
    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        """Return the change of the item factors from the opened sum over `contributions`, float64 (items, dim)."""

    def state_fields(self, sum_index: int) -> StateFields:
        p = self.parameters
        factors = StateField("item_factors", "<f4", (p.items, p.dim))
        return (factors, *count_fields(p.items)) if p.has_counts else (factors,)

    def state_from(self, round_number: int, values: dict[str, Any]) -> FactorState:
        """Return the state; `CodecError` for a count above the number of clients."""
        if not self.parameters.has_counts:
            return FactorState(round_number, **values)
        values["item_counts"] = as_counts(values["item_counts"], values["clients"])
        return CountedFactors(round_number, **values)

    @abstractmethod
    def farthest_step(self, state: FactorState, reach: Reach) -> Floats | float:
        """Return how far a sum can move each item's row, as an L2 norm, (items,) or the same for all, before
        `server_rate`. state: whose item counts, checked before, tell the divisors."""

    @property
    def longest_start(self) -> float:
        """The L2 norm of a row of the initial item factors, at most, but for a chance below 1e-10.

        The norm of a row N(0, 1/dim) exceeds 1 + t / sqrt(dim) with a chance of at most exp(-t^2 / 2). Factors from a
        spectrum have a mean square norm of 1; those of an earlier task are no longer either (`spectral_start`).
        """
        p = self.parameters
        return float(np.sqrt(p.items)) if p.start_from is not None else 1.0 + _FAR / float(np.sqrt(p.dim))

    def require_reachable(self, state: ModelState, reach: Reach) -> None:
        """Check the norms of the item factors' rows, and that so many clients can have been counted."""
        own, p = state_as(state, FactorState), self.parameters
        if isinstance(own, CountedFactors):
            _require_counted(own, p, reach)
        moved = np.asarray(reach.sums * p.server_rate * self.farthest_step(own, reach))
        require_within(own.item_factors, (self.longest_start + moved) * CLIP_SLACK, "rows of item factors")

    def initial_state(self, task_seed: bytes) -> FactorState:
        """Return the state of round 0: item factors N(0, 1/dim) from the task's seed."""
        return self.first_state(initial_factors(task_seed, self.parameters.items, self.parameters.dim))

    def first_state(self, item_factors: NDArray[np.float32]) -> FactorState:
        """Return the state of round 0 with these item factors and, with item biases, counts of 0.

        Raises `ParameterError` for a task that starts from another task's model, which no seed determines.
        """
        if self.parameters.start_from is not None:
            raise ParameterError("this task starts from another task's model: round 0 is a snapshot, not from the seed")
        if self.parameters.has_counts:
            return CountedFactors(0, item_factors, np.zeros(self.parameters.items), 0)
        return FactorState(0, item_factors)


def _require_counted(state: CountedFactors, p: BiasedParameters, reach: Reach) -> None:
    """Raise `CodecError` unless so many clients can have been counted in the task's sums of counts.

    None has been if these sums failed. Counts of another task are those of the terms' digest.
    """
    if p.counting and state.clients and not reach.fewest <= state.clients <= p.counting * reach.most:
        raise CodecError(
            f"a model state counts the items of {state.clients:,} clients, and the task counts {reach.fewest:,} to "
            f"{p.counting * reach.most:,}"
        )


class FactorRecipe(FactorModel):
    """A recipe over item factors whose contributions are laid out from the rows of change alone."""

    def projection(self, spec: RoundSpec, client_id: str) -> NDArray[np.float32] | None:
        """Return B, float32 (client's rank, dim), for local training; None, the default: the full matrix is trained."""
        return None


class RowRecipe(FactorRecipe):
    """A recipe in which every client sends `width` values per item as one block, whose mean an item's row is."""

    parameters: NormalisedParameters

    @property
    def width(self) -> int:
        """Number of values per item in a contribution: by default d, the complete row."""
        return self.parameters.dim

    def change_layout(self) -> VectorLayout:
        """Return one block: update rows (items x width, row-major) and, with normalise "touched", touch counts."""
        p = self.parameters
        update = Segment("update", p.items * self.width, p.clip, norm=p.longest_update, row=self.width)
        return VectorLayout((Block("items", (update, *touch_segments(p))),), sum_class=TRAINED)

    def sensitivity(self, sum_index: int) -> Sensitivity:
        if sum_index <= self.parameters.counting:
            return Sensitivity(counts=True)
        return Sensitivity(per_item=self.width * (1 + (self.parameters.negatives or NEGATIVES)))

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the client's rows (an `Update`) as a dense matrix, within the bounds of `bounded`."""
        (block,), p = self.changes.blocks, self.parameters
        update, clipped, scaled = bounded(local.update, p)
        rows, touched = dense_rows(update, p.items, self.width)
        parts = {"update": rows} | ({TOUCHED: touched} if p.divides_by == "touched" else {})
        return replace(clip_blocks((block,), [block.join(parts)]), clipped=clipped, scaled=scaled)

    def farthest_step(self, state: FactorState, reach: Reach) -> Floats | float:
        longest = float(np.sqrt(self.width)) * (self.parameters.clip if reach.largest is None else reach.largest)
        return longest * most_of_mean(self.parameters, state, reach)

    def mean_update(self, state: ModelState, total: Floats, contributions: int, noise: float = 0.0) -> Floats:
        """Return each item's summed row divided as `normalise` says, float64 (items, width); noise: see `divisors`."""
        parts = self.changes.blocks[0].split(total)
        found = divisors(self.parameters, state, contributions, parts.get(TOUCHED), noise)
        return np.asarray(parts["update"].reshape(self.parameters.items, self.width) / found[:, None])

    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        return self.mean_update(state, total, contributions, spec.noise)

    def warnings(self) -> tuple[str, ...]:
        return self.parameters.touch_warnings()
