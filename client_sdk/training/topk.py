"""The client half of Top-K: FedMF's training; a part of the change is sent, the rest may be kept for the next time.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019): what was not sent is added to the next
change before the next choice, so nothing is lost, only late. What clipping takes off counts as not sent. The residual
never leaves the client; it is rows of the item factors' size, at most 4 items * dim bytes, for items that the client
trained on and has not sent whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.base import LocalResult
from client_sdk.training.factors import USER_FACTOR, FactorHalf
from client_sdk.training.mf import MFConfig
from protocols.recipes.base import ModelState, RoundSpec, Update
from protocols.recipes.topk.recipe import TopKRecipe

__all__ = ["RESIDUAL_ITEMS", "RESIDUAL_ROWS", "TopKHalf", "add_rows", "without_empty_rows"]

RESIDUAL_ITEMS = "residual_items"
"""Name in the memory: int32 (k,), ascending, the items that something is owed to."""
RESIDUAL_ROWS = "residual_rows"
"""Name in the memory: float32 (k, dim), what is owed to each of them."""


def add_rows(one: Update, other: Update) -> Update:
    """The sum of two changes: rows of all items that are in either, ascending."""
    items = np.union1d(one.items, other.items).astype(np.int32)
    values = np.zeros((items.size, one.values.shape[1]), dtype=np.float32)
    for part in (one, other):
        values[np.searchsorted(items, part.items)] += part.values
    return Update(items, values)


def without_empty_rows(update: Update) -> Update:
    """The rows that hold anything."""
    held = update.values.any(axis=1)
    return Update(update.items[held], update.values[held])


@dataclass(frozen=True)
class TopKHalf(FactorHalf):
    """FedMF's training; sends what the recipe's support takes of the change."""

    recipe: TopKRecipe
    training: MFConfig = field(default_factory=MFConfig)

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """A fresh user factor; with error feedback also an empty residual."""
        return {**super().initial_client_state(rng), **self._kept(self._nothing())}

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
        """Train, add what is still owed, send what the support takes of it and owe the rest."""
        local = self._train(spec, client_id, state, history, client_state, rng, excluded)
        due = add_rows(self._owed(client_state), Update(local.items, local.values))
        sending = self.recipe.lay_out(state, due, rng)
        owed = without_empty_rows(Update(due.items, due.values - sending.sent))
        kept = {USER_FACTOR: local.user_factor, **self._kept(owed)}
        return LocalResult(sending.blocks, sending.clipped, kept, local.loss, local.samples)

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """A user factor from local training; nothing is owed by who never took part."""
        return {**super().prepare(spec, state, history, rng), **self._kept(self._nothing())}

    def _nothing(self) -> Update:
        return Update(np.zeros(0, np.int32), np.zeros((0, self.recipe.parameters.dim), np.float32))

    def _owed(self, client_state: ClientState) -> Update:
        if not self.recipe.parameters.error_feedback:
            return self._nothing()
        return Update(client_state[RESIDUAL_ITEMS], client_state[RESIDUAL_ROWS])

    def _kept(self, owed: Update) -> ClientState:
        if not self.recipe.parameters.error_feedback:
            return {}
        return {RESIDUAL_ITEMS: owed.items, RESIDUAL_ROWS: owed.values}
