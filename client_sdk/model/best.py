"""The best measured model of a task with federated evaluation, for tasks that end with it.

Where anyone can open the sums, the server keeps the snapshot of the best model. Where only members can, a device keeps
the best model that it passes while it catches up, and nothing is requested for it: which model was the best follows
from opened sums, so a request that depends on it would tell the server about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import ContractBroken, ModelUnavailable
from client_sdk.model.sync import read_snapshot
from client_sdk.store.client_store import ClientStore, keep_best_state, read_best_state
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.evaluation_curve import Curve
from protocols.recipes.private import unwrapped


def curve_of(recipe: Recipe, state: ModelState) -> Curve | None:
    """Return the measurements in `state`; None for a task without federated evaluation."""
    measured = unwrapped(recipe)
    return measured.curve(state) if isinstance(measured, Evaluated) else None


def ends_with_best(recipe: Recipe) -> bool:
    """Return whether the task ends with the best measured model."""
    measured = unwrapped(recipe)
    return isinstance(measured, Evaluated) and measured.evaluation.keep == "best"


def best_round(recipe: Recipe, state: ModelState) -> int | None:
    """Return the round after which the model was best, by the curve in `state`; None without a measurement."""
    curve = curve_of(recipe, state)
    return None if curve is None or curve.best is None else curve.best.model_round


def keep_if_best(terms: TaskTerms, store: ClientStore | None, before: ModelState | None, after: ModelState) -> None:
    """Store `before` if the curve in the state `after` it says that it is the best model so far.

    Only in tasks that end with the best model and whose sums the server cannot open.
    """
    if store is None or before is None or terms.opened_by == "anyone" or not ends_with_best(terms.recipe):
        return
    if best_round(terms.recipe, after) == before.round_number:
        keep_best_state(store, terms.task_id, terms.recipe, before)


def best_model(
    calls: ApiCalls, terms: TaskTerms, store: ClientStore | None, newest: ModelState, view_group: int | None
) -> Program[ModelState]:
    """Return the best measured model by the curve in the state `newest`; `newest` itself without a measurement.

    Raises `ModelUnavailable` where this device has not kept it and may not request it, `ContractBroken` when the server
    announces the model of another round.
    """
    number = best_round(terms.recipe, newest)
    if number is None or number == newest.round_number:
        return newest
    if number == 0:
        return terms.recipe.initial_state(terms.seed)
    if terms.opened_by != "anyone":
        kept = None if store is None else read_best_state(store, terms.task_id, terms.recipe)
        if kept is None or kept.round_number != number:
            raise ModelUnavailable(number, f"the best model, of round {number}, was not kept on this device")
        return kept
    view = yield from calls.best_snapshot(terms.task_id)
    body = None if view is None else (yield from calls.snapshot(terms.task_id, view, terms.longest_snapshot))
    if view is None or body is None:
        raise ModelUnavailable(number, f"the server does not keep the best model, of round {number}")
    if view.round != number:
        detail = f"the best model is announced as that of round {view.round}, but the curve says round {number}"
        raise ContractBroken("GET", f"/v1/tasks/{terms.task_id}/snapshots/best", 200, detail)
    return read_snapshot(terms, None, view_group, view, body).state


# --- recommendations, computed on the device from scores that never leave it -----------------------------------------


@dataclass(frozen=True, eq=False)
class Recommendations:
    """The best items for one user.

    items: int32 (k,), item numbers, best first. scores: float32 (k,), the recipe's scores (logits q_i . p for factor
    models). ids, titles: the app's own of each item, in tasks with an item catalogue. Iterating yields pairs of item
    and score: the item's id where it has one, otherwise its number.
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float32]
    ids: tuple[str, ...] | None = None
    titles: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return int(self.items.size)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        return iter(zip(self.ids or self.items.tolist(), self.scores.tolist(), strict=True))

    def named(self, catalogue: Catalogue) -> Recommendations:
        """Return these items with their ids and titles in `catalogue`."""
        numbers = self.items.tolist()
        ids, titles = (tuple(of[number] for number in numbers) for of in (catalogue.ids, catalogue.titles))
        return replace(self, ids=ids, titles=titles)


def top_items(scores: NDArray[np.float32], seen: NDArray[np.int32], k: int) -> Recommendations:
    """Return the `k` items of highest score that are not in `seen`; the lower item number wins a tie.

    scores: float32 (items,). seen: int32, distinct item numbers. Raises `ParameterError` unless 1 <= k <= number of
    items that are not seen.
    """
    unseen = scores.size - seen.size
    if not 1 <= k <= unseen:
        raise ParameterError(f"k must be in 1..{unseen} (the number of items not seen yet), got {k}")
    allowed = scores.astype(np.float32)
    allowed[seen] = -np.inf
    best = np.argsort(-allowed, kind="stable")[:k]
    return Recommendations(best.astype(np.int32), allowed[best])
