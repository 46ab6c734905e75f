"""The client side of item biases: its counts, sent once, and the biases from their sum."""

from __future__ import annotations

from math import nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.training.base import LocalResult
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, Recipe, RoundSpec
from protocols.recipes.item_counts import item_biases

__all__ = ["COUNTED", "count_items", "counted_in", "logit_offsets", "uncounted", "why_abstain"]

COUNTED: Final = "counted"
"""Key in the client state of a task with item biases: int64 (1,), the sum with the client's counts, 0 for none."""


def uncounted(sums: int) -> ClientState:
    """Return what the state of a client that was not counted yet has in a task with so many sums of counts."""
    return {COUNTED: np.zeros(1, np.int64)} if sums else {}


def why_abstain(
    recipe: Recipe, spec: RoundSpec, state: ModelState, history: History, client_state: ClientState | None
) -> str | None:
    """Return why a client must not contribute to a sum of counts or ratings; None if it may, and for other sums.

    A contribution without data would count towards `min_clients`, and the sum would be over fewer clients than that.
    The same data in two sums could be computed from their difference. So a client abstains if it has no interactions,
    if another sum has its data, and if the first sum is asked for again although `state` shows that it was released.
    After a failed round the client contributes again. client_state: None for a client that never took part.
    """
    if spec.sum_index > recipe.count_sums:
        return None
    if not len(history):
        return "this client has no interactions, so it has nothing to count"
    counted = 0 if client_state is None else _counted(client_state)
    if counted not in (0, spec.sum_index):
        return f"this client's data are in sum {counted}, and it is counted once"
    if spec.sum_index == 1 and state.round_number > 0:
        return "the server repeats sum 1, which it has released before"
    return None


def counted_in(spec: RoundSpec, client_state: ClientState) -> ClientState:
    """Return the state of a client whose data are in sum `spec.sum_index`.

    Raises `ParameterError` if another sum has them; see `why_abstain`.
    """
    if _counted(client_state) not in (0, spec.sum_index):
        raise ParameterError(f"this client was counted in sum {_counted(client_state)} and cannot be counted again")
    return {**client_state, COUNTED: np.array([spec.sum_index], np.int64)}


def _counted(client_state: ClientState) -> int:
    return int(client_state[COUNTED][0]) if COUNTED in client_state else 0


def count_items(spec: RoundSpec, items: int, history: History, client_state: ClientState) -> LocalResult:
    """Return the contribution to a sum of counts: 1 for each item of the history.

    The same sum is repeated after a failed round; the client then sends its counts again. Raises `ParameterError`
    without interactions, and for a client that another sum counted: it has to abstain (`why_abstain`).
    """
    if not len(history):
        raise ParameterError("a client without interactions has nothing to count")
    own = np.zeros(items)
    own[history.items] = 1.0
    kept = counted_in(spec, client_state)
    return LocalResult([own], clipped=0, client_state=kept, loss=nan, samples=len(history))


def logit_offsets(state: ModelState, negatives: int) -> NDArray[np.float32] | None:
    """Return b_i - ln(negatives) of each item, float32 (items,); None for a model without item biases.

    With `negatives` negatives per positive this is the log-odds of a positive by popularity alone.
    """
    biases = item_biases(state)
    return None if biases is None else biases - np.float32(np.log(negatives))
