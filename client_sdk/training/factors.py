"""The client side of the recipes over item factors. FedMF, CoLR and SCoLR differ in what is trained and sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.base import LocalResult
from client_sdk.training.local import train_locally
from client_sdk.training.mf import LocalUpdate, MFConfig, init_user_factor
from protocols.recipes.base import ModelState, RoundSpec, Update
from protocols.recipes.factors import factors_of
from protocols.recipes.rows import FactorRecipe

__all__ = ["USER_FACTOR", "FactorHalf"]

USER_FACTOR: Final = "user_factor"
"""Key in the client state: float32 (dim,)."""


@dataclass(frozen=True)
class FactorHalf:
    """Matrix factorisation: the user factor stays on the device, the change of the item factors is summed."""

    recipe: FactorRecipe
    training: MFConfig = field(default_factory=MFConfig)

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """Return a random user factor."""
        return {USER_FACTOR: init_user_factor(self.recipe.parameters.dim, rng)}

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> LocalResult:
        """Train on positives and drawn negatives; return the change in the layout of the recipe."""
        local = self._train(spec, client_id, state, history, client_state, rng, excluded)
        blocks, clipped = self.recipe.contribute(spec, client_id, Update(local.items, local.values))
        return LocalResult(blocks, clipped, {USER_FACTOR: local.user_factor}, local.loss, local.samples)

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """Return a user factor from local training."""
        local = self._train(spec, "", state, history, self.initial_client_state(rng), rng, None)
        return {USER_FACTOR: local.user_factor}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the logits q_i . p."""
        return (factors_of(state).item_factors @ client_state[USER_FACTOR]).astype(np.float32)

    def _train(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None,
    ) -> LocalUpdate:
        factors, own = factors_of(state).item_factors, np.asarray(client_state[USER_FACTOR], dtype=np.float32)
        projection = self.recipe.projection(spec, client_id)
        return train_locally(projection, factors, own, history.items, self.training, rng, excluded)
