"""The client side of the recipes over item factors. FedMF, CoLR and SCoLR differ in what is trained and sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientHalf, LocalResult, TrainingConfig, refuse_settings, task_training
from client_sdk.training.mf import (
    LocalUpdate,
    MFConfig,
    NegativeSampler,
    draw_negatives,
    init_user_factor,
    train_locally,
)
from protocols.errors import ParameterError
from protocols.recipes.base import Contribution, FactorState, Local, ModelState, Recipe, RoundSpec, Update
from protocols.recipes.factors import BiasedParameters, CountedFactors, item_biases
from protocols.recipes.rows import FactorRecipe
from protocols.recipes.spectral_start import projected_user, start_of
from protocols.recipes.state import state_as

__all__ = [
    "USER_FACTOR",
    "FactorHalf",
    "count_items",
    "half",
    "logit_offsets",
    "user_factor",
]


USER_FACTOR: Final = "user_factor"
"""Key in the client state: float32 (dim,)."""


def user_factor(
    parameters: object, state: ModelState, client_state: ClientState, history: History
) -> NDArray[np.float32]:
    """Return p, float32 (dim,). In a task that starts from a spectrum, a client that has not trained yet projects its
    row on the item factors of `state`.

    Raises `ParameterError` if it has to project and has no interactions.
    """
    own, start = np.asarray(client_state[USER_FACTOR], dtype=np.float32), start_of(parameters)
    if start is None or own.any() or not isinstance(parameters, BiasedParameters):
        return own
    if not isinstance(state, CountedFactors) or not len(history):
        raise ParameterError("a user factor is projected from item counts and at least one interaction")
    return projected_user(state, history.items, parameters.start_weight, start.item_exponent)


@dataclass(frozen=True)
class FactorHalf:
    """Matrix factorisation: the user factor stays on the device, the change of the item factors is summed."""

    recipe: FactorRecipe
    training: MFConfig = field(default_factory=MFConfig)
    draw: NegativeSampler = draw_negatives

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """Return a random user factor; in a task that starts from a spectrum zeros, which `user_factor` replaces."""
        if start_of(self.recipe.parameters) is not None:
            return {USER_FACTOR: np.zeros(self.recipe.parameters.dim, np.float32)}
        user = init_user_factor(self.recipe.parameters.dim, rng)
        return {USER_FACTOR: user}

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
    ) -> LocalResult:
        """Return the client's item counts, or train on positives and drawn negatives and return the change."""
        if spec.sum_index <= self.recipe.count_sums:
            return count_items(self.recipe.parameters.items, history, client_state)
        local = self._train(spec, client_id, state, history, client_state, rng)
        made = self.recipe.contribute(state, spec, Local(Update(local.items, local.values), client_id))
        return LocalResult(made, {**client_state, USER_FACTOR: local.user_factor}, local.loss, local.samples)

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """Return the initial client state with a user factor from local training."""
        initial = self.initial_client_state(rng)
        local = self._train(spec, "", state, history, initial, rng)
        return {**initial, USER_FACTOR: local.user_factor}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the logits q_i . p, plus b_i with item biases."""
        own = user_factor(self.recipe.parameters, state, client_state, history)
        scores = (state_as(state, FactorState).item_factors @ own).astype(np.float32)
        biases = item_biases(state)
        return scores if biases is None else scores + biases

    def _train(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
    ) -> LocalUpdate:
        factors = state_as(state, FactorState).item_factors
        own = user_factor(self.recipe.parameters, state, client_state, history)
        projection = self.recipe.projection(spec, client_id)
        offsets = logit_offsets(state, self.training.negatives)
        return train_locally(projection, factors, own, history.items, self.training, rng, offsets, self.draw)


def half(recipe: Recipe, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientHalf:
    """Return the client half; `ParameterError` for settings that the recipe does not have."""
    refuse_settings(recipe, graph_filter=graph_filter)
    if not isinstance(recipe, FactorRecipe):
        raise ParameterError(f"recipe {recipe.name!r} sends no rows of change, so it has another client half")
    return FactorHalf(recipe, task_training(recipe.name, recipe.parameters, training, MFConfig))


# --- the client side of item biases: its counts, sent once, and the biases from their sum ----------------------------


def count_items(items: int, history: History, client_state: ClientState) -> LocalResult:
    """Return the contribution to a sum of counts: 1 for each item of the history.

    Raises `ParameterError` without interactions: such a client has to abstain (`why_abstain`).
    """
    if not len(history):
        raise ParameterError("a client without interactions has nothing to count")
    own = np.zeros(items)
    own[history.items] = 1.0
    return LocalResult(Contribution([own]), client_state, nan, len(history))


def logit_offsets(state: ModelState, negatives: int) -> NDArray[np.float32] | None:
    """Return b_i - ln(negatives) of each item, float32 (items,); None for a model without item biases.

    With `negatives` negatives per positive this is the log-odds of a positive by popularity alone.
    """
    biases = item_biases(state)
    return None if biases is None else biases - np.float32(np.log(negatives))
