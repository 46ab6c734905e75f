"""The client side of federated evaluation: hold out rows, train without them, and measure the downloaded model on them.

What is held out is fixed in a client's first contribution and kept with its client state. A measurement is a sum of its
own, to which a client without held-out rows does not contribute: it abstains before its first message. Rows that the
user deletes later are no longer held out; if none is left, the client holds out its last row anew. Negatives follow
from the client and its held-out items, so that all measurements of a client rank against the same items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult, Rng
from protocols.crypto.keys import derive_seed
from protocols.errors import ParameterError
from protocols.recipes.base import Local, ModelState, RoundSpec
from protocols.recipes.evaluated import Evaluated, EvaluatedState
from protocols.recipes.factors import item_biases
from protocols.recipes.rfrec import RFRec
from protocols.recipes.state import state_as

HELD_OUT: Final = "held_out"
"""Key in the client state: int32 (k,), the items that are held out."""
_TRAINED: Final = "trained"
"""Key in the client state: int64 (1,), 1 once the client has trained on the model."""


@dataclass(frozen=True)
class EvaluatedSide(ClientSide):
    """`inner` without the held-out rows, and their measurement in the sums that are one."""

    recipe: Evaluated
    inner: ClientSide

    def initial_client_state(self, rng: Rng) -> ClientState:
        own: ClientState = {HELD_OUT: np.zeros(0, np.int32), _TRAINED: np.zeros(1, np.int64)}
        return {**self.inner.initial_client_state(rng), **own}

    def contribute(
        self, spec: RoundSpec, client_id: str, state: ModelState, history: History, client_state: ClientState, rng: Rng
    ) -> LocalResult:
        """Measure `state` in a measurement; in other sums train, without the held-out rows until the final rounds.

        Raises `ParameterError` for a measurement by a client without held-out rows: it has to abstain (`why_abstain`).
        """
        model, inner = state_as(state, EvaluatedState).model, self.recipe.inner_spec(spec)
        held, kept, theirs = self._held_out(history, client_state)
        ours: ClientState = {HELD_OUT: held.items, _TRAINED: client_state[_TRAINED]}
        if self.recipe.measures_in(spec.sum_index):
            if not len(held):
                raise ParameterError("a client without held-out rows has nothing to measure")
            own = theirs
            if not client_state[_TRAINED][0]:  # it trains for itself, as for recommendations; `rng` stays as it was
                own = self.inner.prepare(inner, model, kept, rng.spawn(1)[0])
            rankings = [self.inner.scores(model, own, kept)]
            if self.recipe.measures_constants(spec.sum_index) and (biases := item_biases(model)) is not None:
                rankings.append(biases)
            measured = self._measure(client_id, kept, held, rankings)
            made = self.recipe.contribute(state, spec, Local(measured, client_id))
            return LocalResult(made, {**theirs, **ours}, nan, len(held))
        rows = history if self.recipe.trains_on_all(spec.sum_index) else kept
        local = self.inner.contribute(inner, client_id, model, rows, theirs, rng)
        if self.recipe.layout(spec.sum_index).sum_class.rule == "trained":
            ours = {**ours, _TRAINED: np.ones(1, np.int64)}
        finish = local.finish
        return replace(
            local,
            client_state={**local.client_state, **ours},
            finish=None if finish is None else lambda: {**finish(), **ours},
        )

    def why_abstain(self, spec: RoundSpec, history: History, client_state: ClientState | None) -> str | None:
        """Return why this client must not contribute to a measurement: without held-out rows it has nothing to add."""
        if not self.recipe.measures_in(spec.sum_index):
            return None
        held, _, _ = self._held_out(history, client_state or {HELD_OUT: np.zeros(0, np.int32)})
        return None if len(held) else "this client holds out no row, so it has nothing to measure"

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: Rng) -> ClientState:
        """Return what the recipe trains on all rows: nothing of it is measured."""
        theirs = self.inner.prepare(self.recipe.inner_spec(spec), state_as(state, EvaluatedState).model, history, rng)
        return {**theirs, HELD_OUT: np.zeros(0, np.int32), _TRAINED: np.ones(1, np.int64)}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        return self.inner.scores(state_as(state, EvaluatedState).used, _without_ours(client_state), history)

    def known(self, state: ModelState) -> NDArray[np.bool_] | None:
        return self.inner.known(state_as(state, EvaluatedState).used)

    def check(self, history: History) -> None:
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
        return history.where(mask), history.where(~mask), _without_ours(client_state)

    def _measure(
        self, client_id: str, kept: History, held: History, rankings: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.float64]:
        """Return the measured values, float64 (values,), of the model's scores and, if measured, of the item biases."""
        inner = self.recipe.inner
        if isinstance(inner, RFRec):
            p = inner.parameters
            return rating_measures(rankings[0], held, p.rating_min, p.rating_max)
        seed = derive_seed(client_id.encode(), "held-out negatives", held.items.astype("<i4").tobytes())
        draws = np.random.default_rng(list(seed))
        return rank_measures(rankings, kept.items, held.items, self.recipe.evaluation.negatives, draws)


def _without_ours(client_state: ClientState) -> ClientState:
    return {name: array for name, array in client_state.items() if name not in (HELD_OUT, _TRAINED)}


# --- how well one client's scores predict its own held-out rows: the values that federated evaluation sums -----------

CUT: Final = 10
"""Length of the list in which a held-out item is a hit."""


def rank_measures(
    rankings: Sequence[NDArray[np.floating]],
    trained: NDArray[np.int32],
    held_out: NDArray[np.int32],
    negatives: int | None,
    draws: Rng,
) -> NDArray[np.float64]:
    """Return HR@10 and NDCG@10 of each ranking, float64 (2 * rankings,), means over the held-out items.

    rankings: scores of all items, each (items,). trained, held_out: the client's items. negatives: how many items
    outside both a held-out item is ranked against, drawn with `draws` once for all; None for all of them. A held-out
    item ranks below other items with the same score. Raises `ParameterError` if fewer than `negatives` items are left.
    """
    free = np.ones(rankings[0].size, dtype=bool)
    free[trained] = free[held_out] = False
    others = np.flatnonzero(free)
    if negatives is not None:
        if others.size < negatives:
            raise ParameterError(f"only {others.size} items are left to draw {negatives} negatives from")
        others = draws.choice(others, negatives, replace=False)
    return np.concatenate([_hits(scores[held_out], scores[others]) for scores in rankings])


def _hits(targets: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return HR@10 and NDCG@10 of targets (k,) among others (m,), float64 (2,). A target that is NaN is no hit."""
    ranks = 1 + np.count_nonzero(~(others < targets[:, None]), axis=1)
    return np.array([np.mean(ranks <= CUT), np.mean(gains(ranks, CUT))])


def gains(ranks: NDArray[np.integer], k: int) -> NDArray[np.float64]:
    """Return each user's NDCG@k with one relevant item, float64 (users,): 1 / log2(rank + 1), 0 for ranks above `k`.

    ranks: (users,), from 1. The ideal is 1.
    """
    return np.asarray((ranks <= k) / np.log2(ranks + 1.0), dtype=np.float64)


def rating_measures(
    predicted: NDArray[np.floating], held_out: History, lowest: float, highest: float
) -> NDArray[np.float64]:
    """Return the mean squared and the mean absolute error of the held-out rows, float64 (2,), in units of the range.

    predicted: a rating of each item, (items,); values outside lowest..highest are moved to the nearest bound, and a
    prediction that is not a number counts as an error of the whole range. Raises `ParameterError` without ratings.
    """
    if held_out.ratings is None:
        raise ParameterError("errors of ratings can be measured on rated items only")
    bounded = np.clip(predicted[held_out.items].astype(np.float64), lowest, highest)
    errors = np.nan_to_num(np.abs(bounded - held_out.ratings) / (highest - lowest), nan=1.0)
    return np.array([np.mean(errors**2), np.mean(errors)])
