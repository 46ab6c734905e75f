"""Processor time of one masked contribution with noise, compared with the same one without; and its bytes.

    .venv/bin/python -m bench.privacy_cost [--quick] [--json FILE]

MovieLens-1M's shape: 3,706 items and a client with 165 of them, in a cohort of 1,000. Both contributions are trained,
encoded in the ring and masked: for itself and for each neighbour of the graph. `cpu_ratio` adds what else the client
does in a round up to then, which depends on no vector: keys, shares for its neighbours, certificates. Epsilon 4 at
delta 1000^-1.1 for all sums of the task, which are the 5 of privirec-k (64 components), and 100 of CoLR (rank 4 of 64).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench._report import Figure, arguments, time_in_turn
from bench.figures import run
from bench.sums import Organiser, Shape, masked_client, masked_run
from client_sdk.history import History
from client_sdk.training import client_side
from protocols.contribution import plan_of_task
from protocols.layout import whole_route
from protocols.messages.privacy import Privacy
from protocols.recipes.base import main_layout
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe
from protocols.sums.masked.client import advertise
from protocols.sums.masked.masks import Mask, add_masks
from protocols.sums.masked.plan import MASKED, MaskedPlan
from protocols.sums.wire import pack

ITEMS: Final = 3706
_POSITIVES: Final = 165
_CLIENTS: Final = 1000
_SIZES: Final = (_CLIENTS, 10_000, 100_000)
_SEED: Final = bytes(range(32))
_RECIPES: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "privirec-k": ({"items": ITEMS, "components": 64, "iterations": 4}, 5),
    "colr": ({"items": ITEMS, "dim": 64, "rank": 4}, 100),
}


def contributions(name: str, clients: int) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """Return the steps `plain` and `noisy`, each a whole contribution, `noise` alone; and bytes and bits of both.

    clients: of a cohort; the more there are, the smaller is a share of the noise.
    """
    parameters, rounds = _RECIPES[name]
    plain = recipe(name, parameters, noisy=True)  # of the same sums in both
    noisy = with_privacy(plain, Privacy(epsilon=4, delta=clients**-1.1, rounds=rounds), rounds, clients, clients)
    assert isinstance(noisy, Private)
    rng = np.random.default_rng(0)
    history = History(np.sort(rng.choice(ITEMS, _POSITIVES, replace=False)).astype(np.int32))
    side, state = client_side(plain, None), noisy.initial_state(_SEED)
    if name == "privirec-k":  # the first sum is of degrees
        state = noisy.absorb(state, noisy.round_spec(_SEED, 1), np.full(ITEMS, 50.0), clients)
    spec, own = noisy.round_spec(_SEED, 2), side.initial_client_state(rng)

    def whole(plan: MaskedPlan, masks: list[Mask], private: Private | None) -> bytes:
        made = side.contribute(spec, "client", state, history, own, np.random.default_rng(1)).contribution
        sent = made if private is None else private.noised(state, spec, made, os.urandom)
        elements = plan.encode(whole_route(plan.layout), list(sent.blocks))
        add_masks(elements, masks)
        return pack(elements, plan.bits)

    steps: dict[str, Callable[[], object]] = {}
    figures: dict[str, int] = {}
    for label, chosen in (("plain", plain), ("noisy", noisy)):
        plan = plan_of_task(MASKED, {}, chosen.layout(2), clients, main_layout(chosen))
        assert isinstance(plan, MaskedPlan)
        degree = plan.neighbourhood(clients).degree
        masks: list[Mask] = [(os.urandom(32), b"bench", -1 if place % 2 else 1) for place in range(degree + 1)]
        steps[label] = partial(whole, plan, masks, noisy if label == "noisy" else None)
        figures |= {f"{label}_bytes": plan.contribution_bytes(whole_route(plan.layout)), f"{label}_bits": plan.bits}
        figures["masks"] = degree + 1
    trained = side.contribute(spec, "client", state, history, own, np.random.default_rng(1)).contribution
    steps["noise"] = partial(noisy.noised, state, spec, trained, os.urandom)
    return steps, figures


def rest_of_a_round(clients: int) -> float:
    """Return the processor seconds of one client for keys, shares, certificates and key agreements in a cohort."""
    plan, organiser = Shape(clients, 1, parameters={}).plan, Organiser()
    play = masked_client(plan, clients, np.zeros(1), organiser, whole=False)
    made = masked_run(plan, clients, np.zeros(1, plan.dtype))
    new = partial(advertise, made.context, "client-00000", Ed25519PrivateKey.generate(), made.policy)
    timings = time_in_turn({"keys": new, "rest": lambda: play(True)}, 3, clock=time.process_time)
    return timings["keys"] + timings["rest"]


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    rest = rest_of_a_round(50 if options.quick else _CLIENTS)
    figures: dict[str, Figure] = {"rest_of_a_round_ms": 1e3 * rest}
    for name in _RECIPES:
        for clients in _SIZES:
            steps, sizes = contributions(name, clients)
            timings = time_in_turn(steps, 2 if options.quick else 15, clock=time.process_time)
            noisy, plain = timings["noisy"], timings["plain"]
            figures[f"{name}.clients{clients}.contribution_ratio"] = noisy / plain
            if clients == _CLIENTS:
                figures |= {f"{name}.{step}_ms_median": 1e3 * seconds for step, seconds in timings.items()}
                figures |= {f"{name}.{key}": value for key, value in sizes.items()}
                figures[f"{name}.cpu_ratio"] = (rest + noisy) / (rest + plain)
                figures[f"{name}.bytes_ratio"] = sizes["noisy_bytes"] / sizes["plain_bytes"]
    return figures


if __name__ == "__main__":
    run("privacy_cost", arguments(__doc__), measure)
