"""Popularity: clients sum which items they have. Everyone gets the same ranking, by the share of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError
from protocols.layout import ONCE_ROWS, Block, Segment, VectorLayout
from protocols.recipes.base import (
    Contribution,
    ItemParameters,
    Local,
    ModelState,
    Recipe,
    RoundSpec,
    check_follows,
)
from protocols.recipes.registry import RecipeEntry
from protocols.recipes.state import StateField, StateFields


class PopularityParameters(ItemParameters):
    """Popularity has no parameter beyond the number of items."""


@dataclass(frozen=True)
class PopularityState(ModelState):
    """The share of the clients that have each item, float32 (items,)."""

    shares: NDArray[np.float32]


@dataclass(frozen=True)
class Popularity(Recipe):
    """One sum of N counts."""

    parameters: PopularityParameters
    name: str = "popularity"

    state_class = PopularityState

    def layout(self, sum_index: int = 1, size: tuple[int, ...] = ()) -> VectorLayout:
        """Return one block of N counts, each 0 or 1 in a contribution."""
        has = Segment("has", self.parameters.items, 1.0, integral=True)
        return VectorLayout((Block("items", (has,)),), sum_class=ONCE_ROWS)

    def initial_state(self, task_seed: bytes) -> PopularityState:
        """Return the state of round 0: every share is 0."""
        return PopularityState(0, np.zeros(self.parameters.items, np.float32))

    def state_fields(self, sum_index: int) -> StateFields:
        """Return the shares."""
        return (StateField("shares", "<f4", (self.parameters.items,)),)

    def state_from(self, round_number: int, values: dict[str, Any]) -> PopularityState:
        """Return the state; `CodecError` for a share outside 0..1."""
        shares = values["shares"]
        if not ((shares >= 0) & (shares <= 1)).all():
            raise CodecError("a model state holds a share outside 0..1")
        return PopularityState(round_number, shares)

    def contribute(self, state: ModelState, spec: RoundSpec, local: Local) -> Contribution:
        """Return 1 for each item of the client, 0 for the others. local: the items, int32 (k,)."""
        own = np.zeros(self.parameters.items)
        own[local.update] = 1.0
        return Contribution([own])

    def absorb(self, state: ModelState, spec: RoundSpec, total: NDArray[np.float64], contributions: int) -> ModelState:
        """Return the shares in the opened sum; `ParameterError` if `state` is of this round or a later one."""
        check_follows(state, spec)
        return PopularityState(spec.number, (total / max(1, contributions)).astype(np.float32))

    def is_done(self, state: ModelState) -> bool:
        """Return whether the sum is absorbed: one sum is enough."""
        return state.round_number > 0

    def warnings(self) -> tuple[str, ...]:
        """Return what the sum reveals."""
        return ("The sum shows how many clients have each item.",)


ENTRY: Final = RecipeEntry(
    name="popularity",
    parameters=PopularityParameters,
    make=Popularity,
    client_side="popularity_recipe.client:client_side",
    source="An example",
)
