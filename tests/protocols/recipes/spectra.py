"""Models of PriviRec-k of a few made-up clients."""

from __future__ import annotations

from typing import Final

import numpy as np

from protocols.recipes.base import Local
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.state import state_as

TASK_SEED: Final = bytes(range(32))
ITEMS: Final = 30


def after_iterations(made: PriviRecK) -> PriviRecState:
    """The model of 40 clients after the last iteration, before the sums of next items and of validation."""
    rows = (np.random.default_rng(1).random((40, ITEMS)) < 0.3).astype(float)
    state = made.initial_state(TASK_SEED)
    while state.sum_index < made.last_iteration:
        spec = made.round_spec(TASK_SEED, state.sum_index + 1)
        parts = [made.contribute(state, spec, Local(np.flatnonzero(row))).vector for row in rows]
        state = made.absorb(state, spec, np.sum(parts, axis=0), len(rows))
    return state_as(state, PriviRecState)
