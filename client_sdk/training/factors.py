"""The client side of the recipes over item factors. FedMF, CoLR and SCoLR differ in what is trained and sent;
Top-K sends a part of FedMF's change and can keep the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult, Rng, TrainingConfig, task_training
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
from protocols.recipes.privirec_parameters import LEAST_OWNERS
from protocols.recipes.rows import FactorRecipe
from protocols.recipes.spectral_start import projected_user, projects, start_of
from protocols.recipes.state import state_as
from protocols.recipes.topk import TopKRecipe

USER_FACTOR: Final = "user_factor"
"""Key in the client state: float32 (dim,)."""
RESIDUAL_ITEMS: Final = "residual_items"
"""Key in the client state: int32 (k,), ascending, the items with a residual."""
RESIDUAL_ROWS: Final = "residual_rows"
"""Key in the client state: float32 (k, dim), their residuals."""


def user_factor(
    parameters: object, state: ModelState, client_state: ClientState, history: History
) -> NDArray[np.float32]:
    """Return p, float32 (dim,). In a task that starts from a spectrum, a client that has not trained yet projects its
    row on the item factors of `state`.

    Raises `ParameterError` if it has to project and has no interactions.
    """
    own, start = np.asarray(client_state[USER_FACTOR], dtype=np.float32), start_of(parameters)
    exponent = None if start is None else start.item_exponent
    if exponent is None or own.any() or not isinstance(parameters, BiasedParameters):
        return own
    if not isinstance(state, CountedFactors) or not len(history):
        raise ParameterError("a user factor is projected from item counts and at least one interaction")
    return projected_user(state, history.items, parameters.start_weight, exponent)


@dataclass(frozen=True)
class FactorSide(ClientSide):
    """Matrix factorisation: the user factor stays on the device, the change of the item factors is summed."""

    recipe: FactorRecipe
    training: MFConfig = field(default_factory=MFConfig)
    draw: NegativeSampler = draw_negatives

    def initial_client_state(self, rng: Rng) -> ClientState:
        """Return a random user factor; in a task that starts from a spectrum zeros, which `user_factor` replaces."""
        if projects(self.recipe.parameters):
            return {USER_FACTOR: np.zeros(self.recipe.parameters.dim, np.float32)}
        user = init_user_factor(self.recipe.parameters.dim, rng)
        return {USER_FACTOR: user}

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        """Return the client's item counts, or train on positives and drawn negatives and return the change."""
        if spec.sum_index <= self.recipe.parameters.counting:
            return count_items(self.recipe.parameters.items, history, client_state)
        local = self._train(spec, client_id, state, history, client_state, rng)
        made = self.recipe.contribute(state, spec, Local(local, client_id, rng=rng))
        return LocalResult(made, {**client_state, USER_FACTOR: local.user_factor}, local.loss, local.samples)

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: Rng) -> ClientState:
        initial = self.initial_client_state(rng)
        return {**initial, USER_FACTOR: self._train(spec, "", state, history, initial, rng).user_factor}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the logits q_i . p, plus b_i with item biases."""
        own = user_factor(self.recipe.parameters, state, client_state, history)
        scores = (state_as(state, FactorState).item_factors @ own).astype(np.float32)
        biases = item_biases(state)
        return scores if biases is None else scores + biases

    def known(self, state: ModelState) -> NDArray[np.bool_] | None:
        return counted(state)

    def _train(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalUpdate:
        factors = state_as(state, FactorState).item_factors
        own = user_factor(self.recipe.parameters, state, client_state, history)
        projection = self.recipe.projection(spec, client_id)
        offsets = logit_offsets(state, self.training.negatives)
        return train_locally(projection, factors, own, history.items, self.training, rng, offsets, self.draw)


@dataclass(frozen=True)
class TopKSide(FactorSide):
    """FedMF's training; the contribution contains the entries of the change that the recipe's support selects.

    With error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019) the part that is not sent, the
    residual, is added to the next change before its entries are selected. So it is sent later instead of being lost.
    The part removed by clipping belongs to the residual. The residual never leaves the client. It has the rows of the
    items that the client trained and has not sent completely, at most 4 items * dim bytes.
    """

    recipe: TopKRecipe

    def initial_client_state(self, rng: Rng) -> ClientState:
        return {**super().initial_client_state(rng), **self._state_of(self._residual({}))}

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        """Return the client's item counts, or train and return the selected part of the change and the residual.

        What the support did not select is the next residual.
        """
        if spec.sum_index <= self.recipe.parameters.counting:
            return count_items(self.recipe.parameters.items, history, client_state)
        local = self._train(spec, client_id, state, history, client_state, rng)
        change = _add_rows(self._residual(client_state), local)
        made = self.recipe.contribute(state, spec, Local(change, client_id, rng=rng))
        left = change.values - made.sent
        held = left.any(axis=1)
        unsent = self._state_of(Update(change.items[held], left[held]))
        return LocalResult(made, {**client_state, USER_FACTOR: local.user_factor, **unsent}, local.loss, local.samples)

    def _residual(self, client_state: ClientState) -> Update:
        none = np.zeros((0, self.recipe.parameters.dim), np.float32)
        return Update(client_state.get(RESIDUAL_ITEMS, np.zeros(0, np.int32)), client_state.get(RESIDUAL_ROWS, none))

    def _state_of(self, residual: Update) -> ClientState:
        if not self.recipe.parameters.error_feedback:
            return {}
        return {RESIDUAL_ITEMS: residual.items, RESIDUAL_ROWS: residual.values}


def _add_rows(one: Update, other: Update) -> Update:
    """Return the sum of two changes, with the rows of all items in either, ascending."""
    items = np.union1d(one.items, other.items).astype(np.int32)
    values = np.zeros((items.size, one.values.shape[1]), dtype=np.float32)
    for part in (one, other):
        values[np.searchsorted(items, part.items)] += part.values
    return Update(items, values)


def client_side(recipe: Recipe, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientSide:
    if not isinstance(recipe, FactorRecipe):
        raise ParameterError(f"recipe {recipe.name!r} sends no rows of change, so it has another client side")
    chosen = task_training(recipe, training, MFConfig, graph_filter)
    return TopKSide(recipe, chosen) if isinstance(recipe, TopKRecipe) else FactorSide(recipe, chosen)


# --- the client side of item biases: its counts, sent once, and the biases from their sum ----------------------------


def counted(state: ModelState) -> NDArray[np.bool_] | None:
    """Return which items `LEAST_OWNERS` clients or more have, bool (items,); None for a model without item counts."""
    return state.item_counts >= LEAST_OWNERS if isinstance(state, CountedFactors) and state.clients else None


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
