"""The client side of Top-K: FedMF's training, of whose change only a part is sent. The rest can be kept.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019): the part that is not sent, the residual,
is added to the next change before its entries are selected. So it is sent later instead of being lost. The part removed
by clipping belongs to the residual. The residual never leaves the client. It has the rows of the items that the client
trained and has not sent completely, at most 4 items * dim bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientHalf, LocalResult, TrainingConfig, refuse_settings, task_training
from client_sdk.training.factors import USER_FACTOR, FactorHalf, count_items
from client_sdk.training.mf import MFConfig
from protocols.recipes.base import Local, ModelState, RoundSpec, Update
from protocols.recipes.topk import TopKRecipe

__all__ = ["RESIDUAL_ITEMS", "RESIDUAL_ROWS", "TopKHalf", "add_rows", "half", "without_empty_rows"]

RESIDUAL_ITEMS = "residual_items"
"""Key in the client state: int32 (k,), ascending, the items with a residual."""
RESIDUAL_ROWS = "residual_rows"
"""Key in the client state: float32 (k, dim), their residuals."""


def add_rows(one: Update, other: Update) -> Update:
    """Return the sum of two changes, with the rows of all items in either, ascending."""
    items = np.union1d(one.items, other.items).astype(np.int32)
    values = np.zeros((items.size, one.values.shape[1]), dtype=np.float32)
    for part in (one, other):
        values[np.searchsorted(items, part.items)] += part.values
    return Update(items, values)


def without_empty_rows(update: Update) -> Update:
    """Return the rows of `update` that have a nonzero value."""
    held = update.values.any(axis=1)
    return Update(update.items[held], update.values[held])


@dataclass(frozen=True)
class TopKHalf(FactorHalf):
    """FedMF's training; the contribution contains the entries of the change that the recipe's support selects."""

    recipe: TopKRecipe
    training: MFConfig = field(default_factory=MFConfig)

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """Return a random user factor and, with error feedback, an empty residual."""
        return {**super().initial_client_state(rng), **self._state_of(self._no_residual())}

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
    ) -> LocalResult:
        """Return the client's item counts; or train, add the residual, contribute the entries that the support selects,
        and keep the rest as the residual."""
        if spec.sum_index <= self.recipe.count_sums:
            return count_items(self.recipe.parameters.items, history, client_state)
        local = self._train(spec, client_id, state, history, client_state, rng)
        change = add_rows(self._residual(client_state), Update(local.items, local.values))
        made = self.recipe.contribute(state, spec, Local(change, client_id, rng=rng))
        residual = without_empty_rows(Update(change.items, change.values - made.sent))
        kept = {**client_state, USER_FACTOR: local.user_factor, **self._state_of(residual)}
        return LocalResult(made, kept, local.loss, local.samples)

    def _no_residual(self) -> Update:
        return Update(np.zeros(0, np.int32), np.zeros((0, self.recipe.parameters.dim), np.float32))

    def _residual(self, client_state: ClientState) -> Update:
        if not self.recipe.parameters.error_feedback:
            return self._no_residual()
        return Update(client_state[RESIDUAL_ITEMS], client_state[RESIDUAL_ROWS])

    def _state_of(self, residual: Update) -> ClientState:
        if not self.recipe.parameters.error_feedback:
            return {}
        return {RESIDUAL_ITEMS: residual.items, RESIDUAL_ROWS: residual.values}


def half(recipe: TopKRecipe, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientHalf:
    """Return the client half; `ParameterError` for settings that the recipe does not have."""
    refuse_settings(recipe, graph_filter=graph_filter)
    return TopKHalf(recipe, task_training(recipe.name, recipe.parameters, training, MFConfig))
