"""Top-K: FedMF in which a contribution holds only K entries of the change of the item factors.

Sparsified updates (Aji and Heafield, EMNLP 2017), a baseline of the CoLR paper: Nguyen et al. (WWW 2024), sections 3.2
and 5.2, with K from 1/64 to 16/64 of the N*d entries. The positions of a client's largest entries reveal which items it
touched, so there are two supports:

    shared   every client sends the entries of ONE support, computed from the sums so far. The positions
             reveal nothing about any client, and the values can be packed, encrypted or masked like a dense vector.
    own      as in the paper: every client sends its own K largest entries and their positions in the clear. The server
             learns where the client's change is largest, and so which items it interacted with.

With shared support an entry of the sum is divided as `normalise` says (`protocols.recipes.rows`). With own
support it is divided by the number of clients that sent the entry, which is summed beside it: a client with fewer than
K changed entries adds others with count 0.

**The shared support**, the entries that every client sends, is a public function of the sums so far. It must not depend
on one client's data, so it is computed from sums, in one of two ways:

    aggregate   the entries of the last sum with the largest mean change
    vote        the items that most clients vote for, with votes summed next to the values

Only half of the next support comes from there. Entries outside the support are not summed, so a support made of the
strongest entries alone could never grow beyond them. The other half is drawn from all other entries with the round's
public seed, so that every entry is drawn after 2/share sums on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocols.crypto.random import permutation
from protocols.errors import CodecError
from protocols.layout import TRAINED, Block, Floats, Segment, VectorLayout, clip_to_bounds
from protocols.recipes.base import Contribution, FactorState, Local, ModelState, RoundSpec
from protocols.recipes.bounds import Reach
from protocols.recipes.defaults import TaskDefaults
from protocols.recipes.factors import CountedFactors, bounded, dense_rows
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.rows import (
    TOUCHED,
    TOUCHED_ROWS,
    FactorRecipe,
    NormalisedParameters,
    divisors,
    most_of_mean,
    touch_segments,
)
from protocols.recipes.state import StateField, StateFields, state_as


def first_units(task_seed: bytes, units: int, kept: int) -> NDArray[np.int64]:
    """Return the first support, int64 (kept,), ascending: drawn from range(units) with the task's seed."""
    return np.sort(permutation(task_seed, "first support", units)[:kept])


def strongest_first(candidates: NDArray[np.int64], strength: Floats) -> NDArray[np.int64]:
    """Return the candidates (k,) with positive `strength` (k,), strongest first; ties go to the lower number."""
    order = np.lexsort((candidates, -strength))
    return candidates[order[: np.count_nonzero(strength > 0)]]


def renewed_units(strongest: NDArray[np.int64], seed: bytes, units: int, kept: int) -> NDArray[np.int64]:
    """Return the next support, int64 (kept,), ascending, distinct.

    It is the first kept // 2 of `strongest`, filled up with others of range(units) drawn with `seed`, the public seed
    of the last summed round.
    """
    held = strongest[: kept // 2]
    drawn = permutation(seed, "support", units)
    free = np.ones(units, dtype=bool)
    free[held] = False
    return np.sort(np.concatenate([held, drawn[free[drawn]][: kept - held.size]]))


def _entries_of_rows(rows: NDArray[np.int64], dim: int) -> NDArray[np.int64]:
    """Return the row-major numbers of all entries of `rows` (k,) in a matrix with `dim` columns, int64 (k * dim,)."""
    return np.asarray(rows[:, None] * dim + np.arange(dim)).ravel()


class TopKParameters(NormalisedParameters):
    """The shape of the item factors, the share of their change that is sent, and the choice of its entries."""

    share: float = Field(
        default=1 / 16, gt=0, le=1, description="Share of the N*d entries that a contribution holds: K = share * N*d."
    )
    support: Literal["shared", "own"] = Field(
        default="shared",
        description="shared: every client sends the same entries, whose positions reveal nothing. own: each client "
        "sends its own largest entries, as in the paper; needs reveal_indices.",
    )
    support_from: Literal["aggregate", "vote"] = Field(
        default="aggregate",
        description="How the next shared support is chosen: the strongest entries of the last sum, or a vote on items "
        "that is part of every contribution; needs reveal_touched.",
    )
    error_feedback: bool = Field(
        default=False, description="Whether clients add what they did not send to their next change."
    )
    reveal_indices: bool = Field(
        default=False, description="Consent to own support: the server sees which entries each client sends."
    )

    @model_validator(mode="after")
    def _check_consent(self) -> Self:
        if self.support == "own" and not self.reveal_indices:
            raise ValueError(
                "own support shows the server which entries each client sends, and so which items it touched: consent "
                "with reveal_indices=true, or set support to 'shared'"
            )
        if self.support == "shared" and self.reveal_indices:
            raise ValueError("reveal_indices=true needs support 'own': support 'shared' reveals no indices")
        if self.support == "own" and (self.item_bias != "none" or self.normalise == "expected"):
            raise ValueError("own support has no item counts: set item_bias to 'none' and leave normalise out")
        if self.start_from is not None:
            raise ValueError("topk cannot start from another task's model: leave out start_from")
        return self

    def shows_touched(self) -> tuple[str, ...]:
        """Return which parameters make the sums show touched items: votes are mostly for a client's own items."""
        votes = ("support_from 'vote'",) if self.support_from == "vote" else ()
        return (*super().shows_touched(), *votes)

    @property
    def entries(self) -> int:
        """N*d: number of entries of the item factors."""
        return self.items * self.dim


@dataclass(frozen=True)
class TopKState(FactorState):
    """The item factors and the next support."""

    support: NDArray[np.int32]
    """int32 (K,), ascending row-major entry numbers."""


@dataclass(frozen=True)
class CountedTopKState(TopKState, CountedFactors):
    """The state of a task with item biases."""


@dataclass(frozen=True)
class TopKRecipe(FactorRecipe):
    """Base class of both supports. `sent` of a contribution is float32 (k, dim), for the k rows of the update."""

    parameters: TopKParameters
    name: str = "topk"

    can_start = False

    @property
    def unit(self) -> int:
        """Number of entries that are chosen together."""
        return 1

    @property
    def kept(self) -> int:
        """K: number of entries that a contribution holds, in whole units."""
        return self.unit * max(1, round(self.parameters.share * (self.parameters.entries // self.unit)))


@dataclass(frozen=True)
class SharedTopK(TopKRecipe):
    """Shared support: K values and, by consent, N touch counts and N votes per contribution."""

    @property
    def unit(self) -> int:
        """Number of entries that are chosen together: one, or a row with support_from "vote"."""
        return 1 if self.parameters.support_from == "aggregate" else self.parameters.dim

    @property
    def gain(self) -> float:
        """Factor of the mean change: 1/share, or 1 with error feedback, which sends the rest later.

        A support is a sample of the change. Dividing by the probability that an entry is in it keeps the sum unbiased
        for drawn entries (Wangni et al., NeurIPS 2018); the strongest half has the same factor.
        """
        return 1.0 if self.parameters.error_feedback else self.parameters.entries / self.kept

    def change_layout(self) -> VectorLayout:
        """Return one block: the support's values (K) and, if any, touch counts (items) and votes (items)."""
        p = self.parameters
        segments = [Segment("update", self.kept, p.clip, norm=p.longest_update, row=1), *touch_segments(p)]
        if p.support_from == "vote":
            segments.append(Segment("votes", p.items, 1.0, integral=True, row=1))
        return VectorLayout((Block("support", tuple(segments)),), sum_class=TRAINED)

    def warnings(self) -> tuple[str, ...]:
        return self.parameters.touch_warnings()

    def state_fields(self, sum_index: int) -> StateFields:
        return (*super().state_fields(sum_index), StateField("support", "<u4", (self.kept,)))

    def initial_state(self, task_seed: bytes) -> TopKState:
        first = super().initial_state(task_seed)
        units = first_units(task_seed, self.parameters.entries // self.unit, self.kept // self.unit)
        return _with_support(first, self._support(units))

    def state_from(self, round_number: int, values: dict[str, Any]) -> TopKState:
        """Return the state; `CodecError` also for a support that is not ascending entry numbers."""
        support = values.pop("support").astype(np.int64)
        if support[-1] >= self.parameters.entries or not (support[1:] > support[:-1]).all():
            raise CodecError("a model state's support must be ascending entry numbers of the item factors")
        return _with_support(super().state_from(round_number, values), support.astype(np.int32))

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the update's values on the support (0 where it has none) and, if any, touch vector and vote."""
        p, support = self.parameters, state_as(state, TopKState).support
        update, clipped, scaled = bounded(local.update, p)
        rows, touched = dense_rows(update, p.items, p.dim)
        parts = {"update": rows.ravel()[support]}
        if p.divides_by == "touched":
            parts[TOUCHED] = touched
        if p.support_from == "vote":
            parts["votes"] = np.zeros(p.items)
            strength = np.linalg.norm(update.values.astype(np.float64), axis=1)
            chosen = strongest_first(update.items.astype(np.int64), strength)
            parts["votes"][chosen[: self.kept // self.unit]] = 1.0
        block = self.changes.blocks[0]
        vector, _ = clip_to_bounds(block, block.join(parts))
        sent = np.zeros(p.entries, np.float32)
        sent[support] = vector[: self.kept]
        return Contribution([vector], clipped, scaled, sent.reshape(p.items, p.dim)[update.items])

    def absorb(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> ModelState:
        """Return the next state; after a sum of changes its support follows from this sum and the round's seed."""
        moved = super().absorb(state, spec, total, contributions)
        if spec.sum_index <= self.parameters.counting:
            return moved
        p = self.parameters
        if p.support_from == "vote":
            votes = self.changes.blocks[0].split(total)["votes"]
            strongest = strongest_first(np.arange(p.items), votes)
        else:
            support = state_as(state, TopKState).support.astype(np.int64)
            strongest = strongest_first(support, np.abs(self._mean(state, total, contributions)))
        units = renewed_units(strongest, spec.seed, p.entries // self.unit, self.kept // self.unit)
        return _with_support(state_as(moved, FactorState), self._support(units))

    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        """Return `gain` times the mean change on the support, 0 elsewhere, float64 (items, dim)."""
        p = self.parameters
        change = np.zeros(p.entries)
        change[state_as(state, TopKState).support] = self.gain * self._mean(state, total, contributions)
        return change.reshape(p.items, p.dim)

    def farthest_step(self, state: FactorState, reach: Reach) -> Floats | float:
        p = self.parameters
        return self.gain * p.clip * float(np.sqrt(p.dim)) * most_of_mean(p, state, reach)

    def _mean(self, state: ModelState, total: Floats, contributions: int) -> Floats:
        """Return the mean change of the support's entries, float64 (K,)."""
        p, parts = self.parameters, self.changes.blocks[0].split(total)
        rows = state_as(state, TopKState).support // p.dim
        return np.asarray(parts["update"] / divisors(p, state, contributions, parts.get(TOUCHED))[rows])

    def _support(self, units: NDArray[np.int64]) -> NDArray[np.int32]:
        return _entries_of_rows(units, self.unit).astype(np.int32)


@dataclass(frozen=True)
class OwnTopK(TopKRecipe):
    """Own support: each client's own K entries, each with a count of 1, at positions it names in the clear."""

    def change_layout(self) -> VectorLayout:
        """Return one block, value and count, for each of the N*d entries, of which a contribution names K."""
        entry = Block("entry", (Segment("update", 1, self.parameters.clip), Segment("sent", 1, 1.0, integral=True)))
        return VectorLayout((entry,) * self.parameters.entries, chosen=self.kept, sum_class=TRAINED)

    def longest_vector(self) -> int:
        """Return the length of the layout, without its N*d blocks: a value and a count for each."""
        return 2 * self.parameters.entries

    def warnings(self) -> tuple[str, ...]:
        return (
            "Own support: every contribution names in the clear the entries of the item factors that it changes most, "
            "so the server learns which items each client touched, whatever hides the values.",
        )

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return the update's K entries of largest size, filled up with random entries of value and count 0."""
        p, kept = self.parameters, self.kept
        update, clipped, scaled = bounded(local.update, p)
        dense_rows(update, p.items, p.dim)  # raises for an invalid update
        values = update.values.astype(np.float64).ravel()
        largest = np.flatnonzero(values)
        if largest.size > kept:
            largest = largest[np.argpartition(-np.abs(values[largest]), kept - 1)[:kept]]
        inside = values[largest]
        places = _entries_of_rows(update.items.astype(np.int64), p.dim)[largest]
        pairs = np.zeros((kept, 2))
        pairs[: largest.size] = np.stack([inside, np.ones(largest.size)], axis=1)
        if largest.size < kept:
            free = np.ones(p.entries, dtype=bool)
            free[places] = False
            places = np.concatenate(
                [places, local.rng.choice(np.flatnonzero(free), kept - largest.size, replace=False)]
            )
        order = np.argsort(places)
        sent = np.zeros(values.size, np.float32)
        sent[largest] = inside
        blocks = [places[order].astype(np.float64), pairs[order].ravel()]
        return Contribution(blocks, clipped, scaled, sent.reshape(update.values.shape))

    def farthest_step(self, state: FactorState, reach: Reach) -> Floats | float:
        return reach.most * self.parameters.clip * float(np.sqrt(self.parameters.dim))

    def change(self, state: ModelState, spec: RoundSpec, total: Floats, contributions: int) -> Floats:
        """Return the mean change of every entry over the clients that sent it, float64 (items, dim)."""
        update, counts = total.reshape(self.parameters.entries, 2).T
        return np.asarray(update / np.maximum(counts, 1.0)).reshape(self.parameters.items, self.parameters.dim)


def _top_k(parameters: TopKParameters) -> TopKRecipe:
    """Return the recipe for the support that the parameters choose."""
    return SharedTopK(parameters) if parameters.support == "shared" else OwnTopK(parameters)


def _with_support(state: FactorState, support: NDArray[np.int32]) -> TopKState:
    if isinstance(state, CountedFactors):
        return CountedTopKState(state.round_number, state.item_factors, state.item_counts, state.clients, support)
    return TopKState(state.round_number, state.item_factors, support)


ENTRY: Final = RecipeEntry(
    name="topk",
    text="largest values of the change",
    parameters=TopKParameters,
    make=_top_k,
    client_side="client_sdk.training.factors:client_side",
    needs=frozenset({"single entries"}),
    why_not="Top-K adds single entries at positions that the client chooses, but a ciphertext holds thousands of "
    "values that can only be added position by position (Nguyen et al., WWW 2024, appendix C); 'colr' and 'scolr' send "
    "as few values, in one vector",
    source="Aji and Heafield, EMNLP 2017; Nguyen et al., WWW 2024, section 5.2. "
    "Guide: [Top-K](recipes.md#top-k-and-svd)",
    defaults=TaskDefaults(paper=TOUCHED_ROWS),
)
