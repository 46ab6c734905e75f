"""How long the sums of a PriviRec task take on this machine, estimated before the first one from measured parts."""

from __future__ import annotations

import os
from time import perf_counter
from typing import Final

import numpy as np

from client_sdk.demo.privirec.setup import PriviRecSetup
from protocols.layout import Block, Segment, VectorLayout
from protocols.sum_classes import TRAINED
from protocols.sums.masked.masks import SECRET_BYTES, Mask, add_masks
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import run_masked_sum

__all__ = ["estimated_seconds"]

_SAMPLE_CLIENTS: Final = 6
_SAMPLE_MASKS: Final = 4


def estimated_seconds(setup: PriviRecSetup) -> float | None:
    """Return the wall-clock seconds that all sums of the task take; None for plain sums, which take no time to mention.

    Every client expands a mask for each neighbour and one of its own, and the server one for each client; every pair
    agrees on a key and exchanges shares. The time of one mask and of one pair is measured here, in a fraction of a
    second. Requests, catching up and training are left out, so the real time is longer.
    """
    if setup.request.mechanism != "masked":
        return None
    clients = setup.users.size
    pair = _seconds_of_a_pair()
    total = 0.0
    for sum_index in range(1, setup.recipe.steps + 1):
        plan = MASKED.plan({}, setup.recipe.layout(sum_index), clients)
        degree = plan.neighbourhood(clients).degree
        total += clients * ((degree + 2) * _seconds_of_a_mask(plan) + degree * pair)
    return total / min(2, os.cpu_count() or 1)  # the server and the process of the clients


def _seconds_of_a_mask(plan: MaskedPlan) -> float:
    target = np.zeros(plan.layout.length, plan.dtype)
    masks: list[Mask] = [(bytes(SECRET_BYTES), b"estimate", 1)] * _SAMPLE_MASKS
    started = perf_counter()
    add_masks(target, masks)
    return (perf_counter() - started) / _SAMPLE_MASKS


def _seconds_of_a_pair() -> float:
    """Return the seconds that a client's work for one neighbour takes: agreement, shares, checks and opening them."""
    layout = VectorLayout((Block("estimate", (Segment("value", 1, 1.0),)),), sum_class=TRAINED)
    plan = MASKED.plan({"mode": "curious", "dropout": 0.0}, layout, _SAMPLE_CLIENTS)
    vectors = {f"c_{number}": np.zeros(1) for number in range(_SAMPLE_CLIENTS)}
    started = perf_counter()
    run_masked_sum(plan, vectors)
    return (perf_counter() - started) / (_SAMPLE_CLIENTS * (_SAMPLE_CLIENTS - 1))
