"""One round of `arrays` over every mechanism, all parties in this process: its error beside what the plan predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure
from protocols.layout import VectorLayout
from protocols.recipes.arrays import Arrays
from protocols.recipes.arrays_update import contribution
from protocols.recipes.registry import recipe
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.masked.plan import make_plan as masked_plan
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.oneshot.plan import make_plan as oneshot_plan
from protocols.sums.oneshot.run import run_oneshot_sum
from protocols.sums.registry import mechanism
from protocols.sums.run import run_sum

__all__ = ["errors_of_bound"]

CLIENTS, CLIP, MAX_WEIGHT = 5, 0.1, 50.0
SHAPES = {"items.weight": [40, 8], "head.weight": [8, 8], "head.bias": [8]}
SEED = bytes(range(32))
_Vectors = list[NDArray[np.float64]]
_Summed = tuple[NDArray[np.float64], SumPlan]


def _by_run_sum(name: str, parameters: dict[str, Any]) -> Callable[[VectorLayout, _Vectors], _Summed]:
    def play(layout: VectorLayout, vectors: _Vectors) -> _Summed:
        how: Mechanism = mechanism(name)
        plan = how.plan(parameters, layout, len(vectors))
        return run_sum(how, plan, vectors).total, plan

    return play


def _masked(layout: VectorLayout, vectors: _Vectors) -> _Summed:
    plan = masked_plan({"dropout": 0.0}, layout, len(vectors))
    return run_masked_sum(plan, _named(vectors)).total, plan


def _oneshot(layout: VectorLayout, vectors: _Vectors) -> _Summed:
    plan = oneshot_plan({}, layout, len(vectors))
    return run_oneshot_sum(plan, _named(vectors)).total, plan


def _named(vectors: _Vectors) -> dict[str, NDArray[np.float64]]:
    return {f"c{number}": vector for number, vector in enumerate(vectors)}


_PLAYED: dict[str, Callable[[VectorLayout, _Vectors], _Summed]] = {
    "ckks": _by_run_sum("ckks", {}),
    "masked": _masked,
    "oneshot": _oneshot,
    "paillier": _by_run_sum("paillier", {"key_bits": 2048}),
    "plain": _by_run_sum("plain", {}),
}


def errors_of_bound() -> dict[str, Figure]:
    """Return `equality.<mechanism>.error_of_bound`: largest error of a value of the mean / its bound."""
    made = recipe(
        "arrays", {"shapes": SHAPES, "clip": CLIP, "max_weight": MAX_WEIGHT, "reveal_weights": True, "std": 0.0}
    )
    assert isinstance(made, Arrays)
    rng = np.random.default_rng(3)
    updates = [{name: rng.uniform(-CLIP, CLIP, shape) for name, shape in SHAPES.items()} for _ in range(CLIENTS)]
    weights = rng.integers(1, 51, CLIENTS).astype(np.float64)
    vectors = [
        contribution(made.parameters, each, weight).vector for each, weight in zip(updates, weights, strict=True)
    ]
    figures: dict[str, Figure] = {}
    for name, play in _PLAYED.items():
        total, plan = play(made.layout(), vectors)
        after = made.arrays(made.absorb(made.initial_state(SEED), made.round_spec(SEED, 1), total, CLIENTS))
        expected = {key: np.average([each[key] for each in updates], axis=0, weights=weights) for key in SHAPES}
        error = max(float(np.abs(after[key] - expected[key]).max()) for key in SHAPES)
        share = weights.sum() / MAX_WEIGHT
        bound = (1.0 + CLIP) * plan.predicted_error / (share - plan.predicted_error) + CLIP * 2.0**-24
        figures[f"equality.{name}.error_of_bound"] = error / bound
    return figures
