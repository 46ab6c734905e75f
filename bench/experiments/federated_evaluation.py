"""Measure what federated evaluation adds to a contribution: bytes by recipe and mechanism, and a client's time.

    .venv/bin/python -m bench.experiments.federated_evaluation [--quick] [--json FILE]

The model has the size of ML-1M (3,706 items, d = 64, `--quick`: 500 items, d = 16), and a client 165 random items, the
mean of ML-1M. It ranks one held-out item against all others. Times are processor seconds of one client that has trained
before. Nothing needs a data set. bench/README.md lists the keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from bench._report import Figure, arguments, show, time_in_turn, write_figures
from client_sdk.history import History
from client_sdk.training import client_half
from protocols.combinations import carriers
from protocols.messages import Evaluation
from protocols.recipes.base import Recipe
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.registry import recipe as make_recipe
from protocols.sums.participation import plan_of_task
from protocols.sums.registry import mechanism as find_mechanism

POSITIVES, COHORT, REPETITIONS = 165, 60, 9
SEED: Final = bytes(32)
RECIPES: Final[dict[str, dict[str, Any]]] = {
    "fedmf": {},
    "colr": {"rank": 4, "item_bias": "counts"},
    "scolr": {"rank": 4},
    "rfrec": {},
}
MECHANISMS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "masked": {},
    "oneshot": {},
    "ckks": {},
    "paillier": {"key_bits": 3072},
}
_SMALL: Final = ("colr",)
"""Recipes whose sums are short enough for Paillier at this size."""


def contribution_bytes(recipe: Recipe, mechanism: str) -> int:
    """Return the length of a contribution to the recipe's main sum."""
    spec = recipe.round_spec(SEED, recipe.main_sum)
    layout = recipe.layout(recipe.main_sum)
    plan = plan_of_task(find_mechanism(mechanism), MECHANISMS[mechanism], layout, COHORT)
    return plan.contribution_bytes(recipe.route(spec, "client"))


def client_round(recipe: Recipe, history: History) -> Callable[[], object]:
    """Return a function that runs one client's part of a main sum, with the same result on every call."""
    half, state = client_half(recipe), recipe.initial_state(SEED)
    client_state = half.initial_client_state(np.random.default_rng(0))
    for sum_index in range(1, recipe.main_sum):
        spec = recipe.round_spec(SEED, sum_index)
        counts = np.random.default_rng(2).integers(0, COHORT, recipe.layout(sum_index).length).astype(np.float64)
        state = recipe.absorb(state, spec, counts, COHORT)
    spec = recipe.round_spec(SEED, recipe.main_sum)
    client_state = half.contribute(
        spec, "client", state, history, client_state, np.random.default_rng(1)
    ).client_state  # a client that has trained before
    return lambda: half.contribute(spec, "client", state, history, client_state, np.random.default_rng(1))


def main() -> None:
    """Measure, print and write the figures."""
    options = arguments(__doc__ or "").parse_args()
    items, dim = (500, 16) if options.quick else (3706, 64)
    rng = np.random.default_rng(0)
    chosen = rng.choice(items, POSITIVES, replace=False).astype(np.int32)
    history = History(chosen, rng.integers(1, 6, POSITIVES).astype(np.float32))
    figures: dict[str, Figure] = {"items": items, "dim": dim, "repetitions": REPETITIONS}
    for name, more in RECIPES.items():
        plain = make_recipe(name, {"items": items, "dim": dim, **more})
        measured = with_evaluation(plain, Evaluation(every=1), 100)
        for mechanism in MECHANISMS:
            if mechanism not in carriers(name) or (mechanism == "paillier" and name not in _SMALL):
                continue
            before, after = (contribution_bytes(recipe, mechanism) for recipe in (plain, measured))
            figures |= {f"{name}.{mechanism}.bytes": before, f"{name}.{mechanism}.more_bytes": after - before}
        steps = {"train": client_round(plain, history), "both": client_round(measured, history)}
        timings = time_in_turn(steps, REPETITIONS, clock=time.process_time)
        figures[f"{name}.client_ms"] = 1e3 * timings["train"].median
        figures[f"{name}.measuring_ms"] = 1e3 * (timings["both"].median - timings["train"].median)
    show("What federated evaluation adds to a contribution", figures)
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
