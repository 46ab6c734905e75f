"""The client side of Popularity: nothing is trained; the client says which items it has."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult, TrainingConfig, refuse_settings
from popularity_recipe.popularity import Popularity, PopularityState
from protocols.recipes.base import Local, ModelState, RoundSpec
from protocols.recipes.state import state_as


@dataclass(frozen=True)
class PopularitySide(ClientSide):
    """A contribution is the client's 0/1 vector; the score of an item is its share."""

    recipe: Popularity

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
    ) -> LocalResult:
        """Return 1 for each item of the history, 0 for the others."""
        made = self.recipe.contribute(state, spec, Local(history.items, client_id))
        return LocalResult(made, client_state, loss=nan, samples=len(history))

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return each item's share, float32 (items,)."""
        return state_as(state, PopularityState).shares


def client_side(
    recipe: Popularity, training: TrainingConfig | None = None, graph_filter: str | None = None
) -> ClientSide:
    """Return the client side; `ParameterError` for settings that the recipe does not have."""
    refuse_settings(recipe, training, graph_filter, "recipe {} trains nothing")
    return PopularitySide(recipe)
