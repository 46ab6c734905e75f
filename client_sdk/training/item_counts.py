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
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.item_counts import item_biases

__all__ = ["COUNTED", "count_items", "logit_offsets", "may_count", "uncounted"]

COUNTED: Final = "counted"
"""Key in the client state of a task with item biases: int64 (1,), the sum with the client's counts, 0 for none."""


def uncounted(sums: int) -> ClientState:
    """Return what the state of a client that was not counted yet has in a task with so many sums of counts."""
    return {COUNTED: np.zeros(1, np.int64)} if sums else {}


def may_count(client_state: ClientState, sum_index: int) -> bool:
    """Return whether the client may be counted in this sum: it was not counted before, or in this very sum."""
    counted = int(client_state[COUNTED][0]) if COUNTED in client_state else 0
    return counted in (0, sum_index)


def count_items(spec: RoundSpec, items: int, history: History, client_state: ClientState) -> LocalResult:
    """Return the contribution to a sum of counts: 1 for each item of the history, or zeros if it was counted before.

    The same sum is repeated after a failed round; the client then sends its counts again. As a client is counted in one
    sum only, its row cannot be computed from the differences of sums. Raises `ParameterError` without interactions.
    """
    if not len(history):
        raise ParameterError("a client without interactions has nothing to count")
    own = np.zeros(items)
    if may_count(client_state, spec.sum_index):
        own[history.items] = 1.0
        client_state = {**client_state, COUNTED: np.array([spec.sum_index], np.int64)}
    return LocalResult([own], clipped=0, client_state=client_state, loss=nan, samples=len(history))


def logit_offsets(state: ModelState, negatives: int) -> NDArray[np.float32] | None:
    """Return b_i - ln(negatives) of each item, float32 (items,); None for a model without item biases.

    With `negatives` negatives per positive this is the log-odds of a positive by popularity alone.
    """
    biases = item_biases(state)
    return None if biases is None else biases - np.float32(np.log(negatives))
