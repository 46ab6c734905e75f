"""Popularity: clients sum which items they have. Everyone gets the same ranking, by the share of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ParameterError
from protocols.layout import Block, Route, Segment, VectorLayout, whole_route
from protocols.recipes.base import Contribution, ItemParameters, Local, ModelState, RoundSpec, SingleGroupRecipe
from protocols.recipes.registry import RecipeEntry
from protocols.sum_classes import ONCE_ROWS

__all__ = ["ENTRY", "Popularity", "PopularityParameters", "popularity_state"]


class PopularityParameters(ItemParameters):
    """Popularity has no parameter beyond the number of items."""


@dataclass(frozen=True)
class PopularityState(ModelState):
    """The share of the clients that have each item, float32 (items,)."""

    shares: NDArray[np.float32]


@dataclass(frozen=True)
class Popularity(SingleGroupRecipe):
    """One sum of N counts."""

    parameters: PopularityParameters
    name: str = "popularity"
    by_snapshot: ClassVar[bool] = False

    def layout(self, sum_index: int = 1) -> VectorLayout:
        """Return one block of N counts, each 0 or 1 in a contribution."""
        return VectorLayout(
            (Block("items", (Segment("has", self.parameters.items, 1.0, integral=True),)),), sum_class=ONCE_ROWS
        )

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the route to the one block."""
        return whole_route(self.layout())

    def initial_state(self, task_seed: bytes) -> PopularityState:
        """Return the state of round 0: every share is 0."""
        return PopularityState(0, np.zeros(self.parameters.items, np.float32))

    def state_bytes(self, sum_index: int) -> int:
        """Return 4 bytes for each item."""
        return 4 * self.parameters.items

    def encode_state(self, state: ModelState) -> bytes:
        """Return the shares as little-endian float32."""
        return popularity_state(state).shares.astype("<f4").tobytes()

    def decode_state(self, round_number: int, body: bytes) -> PopularityState:
        """Decode the bytes of `encode_state`; `CodecError` for another length or a share outside 0..1."""
        shares = np.frombuffer(exact(body, self.state_bytes(1), "a model state"), "<f4").astype(np.float32)
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
        if spec.number <= popularity_state(state).round_number:
            raise ParameterError(f"round {spec.number} is already in a state of round {state.round_number}")
        return PopularityState(spec.number, (total / max(1, contributions)).astype(np.float32))

    def report(self, state: ModelState) -> dict[str, float]:
        """Return the largest share."""
        return {"largest share": float(popularity_state(state).shares.max())}

    def is_done(self, state: ModelState) -> bool:
        """Return whether the sum is absorbed: one sum is enough."""
        return state.round_number > 0

    def warnings(self) -> tuple[str, ...]:
        """Return what the sum reveals."""
        return ("The sum shows how many clients have each item.",)


def popularity_state(state: ModelState) -> PopularityState:
    """Return `state` as a state of this recipe; `ParameterError` for another."""
    if not isinstance(state, PopularityState):
        raise ParameterError(f"this state holds no shares: it is a {type(state).__name__}")
    return state


ENTRY: Final = RecipeEntry(
    name="popularity",
    parameters=PopularityParameters,
    make=Popularity,
    half="popularity_recipe.client:half",
    source="An example",
)
