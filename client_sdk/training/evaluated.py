"""The client side of federated evaluation: hold out rows, train without them, and measure the downloaded model on them.

What is held out is fixed in a client's first contribution and kept with its client state. Rows that the user deletes
later are no longer held out; if none is left, the client holds out its last row anew. Negatives follow from the client
and its held-out items, so that all measurements of a client rank against the same items.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.base import ChecksHistory, ClientHalf, LocalResult
from client_sdk.training.held_out import rank_measures, rating_measures
from protocols.crypto.domain import derive_seed
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.evaluated import Evaluated, evaluated_state
from protocols.recipes.item_counts import item_biases
from protocols.recipes.rfrec.recipe import RFRec

__all__ = ["HELD_OUT", "EvaluatedHalf"]

HELD_OUT: Final = "held_out"
"""Key in the client state: int32 (k,), the items that are held out."""
_TRAINED: Final = "trained"
"""Key in the client state: int64 (1,), 1 once the client has trained on the model."""


@dataclass(frozen=True)
class EvaluatedHalf:
    """`inner` without the held-out rows, and their measurement in the sums that carry one."""

    recipe: Evaluated
    inner: ClientHalf

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """Return that of the recipe, with nothing held out yet."""
        own: ClientState = {HELD_OUT: np.zeros(0, np.int32), _TRAINED: np.zeros(1, np.int64)}
        return {**self.inner.initial_client_state(rng), **own}

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
        """Measure `state` where the sum asks for it, then train without the held-out rows."""
        model = evaluated_state(state).model
        held, kept, theirs = self._held_out(history, client_state)
        measured = None
        if self.recipe.measures_in(spec.sum_index) and len(held):
            own = client_state if client_state[_TRAINED][0] else None
            measured = self._measure(spec, client_id, model, (kept, held), own, rng)
        rows = history if self.recipe.trains_on_all(spec.sum_index) else kept
        local = self.inner.contribute(spec, client_id, model, rows, theirs, rng, excluded)
        blocks = list(local.blocks)
        if self.recipe.measures_in(spec.sum_index):
            blocks = self.recipe.attach(spec, blocks, measured)
        trained = client_state[_TRAINED] | (spec.sum_index >= self.recipe.main_sum)
        ours: ClientState = {HELD_OUT: held.items, _TRAINED: trained.astype(np.int64)}
        finish = local.finish
        return LocalResult(
            blocks=blocks,
            clipped=local.clipped,
            client_state={**local.client_state, **ours},
            loss=local.loss,
            samples=local.samples,
            finish=None if finish is None else lambda: {**finish(), **ours},
        )

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """Return what the recipe trains on all rows: nothing of it is measured."""
        theirs = self.inner.prepare(spec, evaluated_state(state).model, history, rng)
        return {**theirs, HELD_OUT: np.zeros(0, np.int32), _TRAINED: np.ones(1, np.int64)}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Return the recipe's scores of all items."""
        return self.inner.scores(evaluated_state(state).model, _without_ours(client_state), history)

    def check(self, history: History) -> None:
        """Raise the error that the recipe's client side would raise for `history`, if any."""
        if isinstance(self.inner, ChecksHistory):
            self.inner.check(history)

    def _held_out(self, history: History, client_state: ClientState) -> tuple[History, History, ClientState]:
        """Return the held-out rows, the others, and the client state of the recipe itself.

        A client with one row holds out none, since it would have nothing to train on.
        """
        mask = np.isin(history.items, client_state[HELD_OUT])
        if not mask.any() or mask.all():
            share = self.recipe.evaluation.holdout
            rows = 1 if share == "last" else max(1, floor(share * len(history)))
            mask = np.arange(len(history)) >= max(1, len(history) - rows)
        return _rows(history, mask), _rows(history, ~mask), _without_ours(client_state)

    def _measure(
        self,
        spec: RoundSpec,
        client_id: str,
        model: ModelState,
        split: tuple[History, History],
        client_state: ClientState | None,
        rng: np.random.Generator,
    ) -> NDArray[np.float64]:
        """Return the measured values, float64 (measures,).

        split: rows to train on, and held-out rows. client_state: None for a client that has not trained yet; it trains
        for itself first, as for recommendations. `rng` is left as it was.
        """
        kept, held = split
        if client_state is None:
            client_state = self.inner.prepare(spec, model, kept, rng.spawn(1)[0])
        scores = self.inner.scores(model, _without_ours(client_state), kept)
        inner = self.recipe.inner
        if isinstance(inner, RFRec):
            p = inner.parameters
            return rating_measures(scores, held, p.rating_min, p.rating_max)
        seed = derive_seed(client_id.encode(), "held-out negatives", held.items.astype("<i4").tobytes())
        draws = np.random.default_rng(list(seed))
        rankings = [scores] if (biases := item_biases(model)) is None else [scores, biases]
        return rank_measures(rankings, kept.items, held.items, self.recipe.evaluation.negatives, draws)


def _without_ours(client_state: ClientState) -> ClientState:
    return {name: array for name, array in client_state.items() if name not in (HELD_OUT, _TRAINED)}


def _rows(history: History, mask: NDArray[np.bool_]) -> History:
    return History(history.items[mask], None if history.ratings is None else history.ratings[mask])
