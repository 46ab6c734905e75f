"""The client side of item biases: its counts, sent once, and the biases from their sum."""

from __future__ import annotations

from math import nan

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.local_state.given_data import GivenData
from client_sdk.training.base import LocalResult
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState, RoundSpec
from protocols.recipes.item_counts import item_biases
from protocols.sum_classes import SumClass

__all__ = ["count_items", "logit_offsets", "why_abstain"]


def why_abstain(
    sum_class: SumClass, spec: RoundSpec, state: ModelState, history: History, given: GivenData, task_id: str
) -> str | None:
    """Return why a client must not contribute to a sum of class `once`; None if it may, and for other sums.

    A contribution without data would count towards `min_clients`, and the sum would be over fewer clients than that.
    The same data in two sums could be computed from their difference. So a client abstains if it has no interactions,
    if another sum of the data set has its data, and if the first sum is asked for again although `state` shows that it
    was released. After a failed round the client contributes again to the same sum.
    """
    if not sum_class.once:
        return None
    if not len(history):
        return "this client has no interactions, so it has nothing to count"
    if spec.sum_index == 1 and state.round_number > 0:
        return "the server repeats sum 1, which it has released before"
    return given.why_not_counted(task_id, spec.sum_index)


def count_items(items: int, history: History, client_state: ClientState) -> LocalResult:
    """Return the contribution to a sum of counts: 1 for each item of the history.

    Raises `ParameterError` without interactions: such a client has to abstain (`why_abstain`).
    """
    if not len(history):
        raise ParameterError("a client without interactions has nothing to count")
    own = np.zeros(items)
    own[history.items] = 1.0
    return LocalResult([own], clipped=0, client_state=client_state, loss=nan, samples=len(history))


def logit_offsets(state: ModelState, negatives: int) -> NDArray[np.float32] | None:
    """Return b_i - ln(negatives) of each item, float32 (items,); None for a model without item biases.

    With `negatives` negatives per positive this is the log-odds of a positive by popularity alone.
    """
    biases = item_biases(state)
    return None if biases is None else biases - np.float32(np.log(negatives))
