"""Federated recipes with their recommended parameters: HR@10 and NDCG@10 of every user's own scores.

One process, plain sums: masks and encryption change a sum by less than 1e-6, which no ranking shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.quality_parts.sets import Split
from client_sdk.data.interactions import Interactions
from client_sdk.evaluation.leave_one_out import EvaluationResult, evaluate_scores
from client_sdk.simulation.federation import Federation
from protocols.recipes.base import ModelState
from protocols.recipes.recommended import parameters_for

__all__ = ["ARMS", "Arm", "train_and_evaluate"]

COHORT: Final = 100


@dataclass(frozen=True)
class Arm:
    """One way of training. rounds: sums of the task. cohort: clients in a sum; 0: all.

    started: whether the task starts from a `privirec-k` task with the parameters `SOURCE`.
    """

    recipe: str
    rounds: int
    cohort: int = COHORT
    parameters: Mapping[str, Any] = field(default_factory=dict)
    started: bool = False


SOURCE: Final = {"components": 128, "rayleigh_ritz": True}
"""Parameters of the task that started ones start from; its rounds are not counted in theirs."""

ARMS: Final[Mapping[str, Arm]] = {
    "colr": Arm("colr", 205),
    "fedmf": Arm("fedmf", 205),
    "pfedclr": Arm("pfedclr", 105),
    "colr-started": Arm("colr", 20, started=True),
    "fedmf-started": Arm("fedmf", 10, started=True),
    "pfedclr-started": Arm("pfedclr", 10, started=True),
    "privirec-k": Arm("privirec-k", 6, cohort=0, parameters={"components": 256}),
}


def train_and_evaluate(
    arm: Arm, split: Split, seed: int, tick: Callable[[int], object] = lambda _: None, rounds: int | None = None
) -> EvaluationResult:
    """Train one task of the arm and rank each user's held-out item by the client's own scores.

    tick: called with the number of each completed round. rounds: fewer rounds, for a quick run.
    """
    train = split.data.train
    parameters = parameters_for(arm.recipe, {"items": train.n_items, **arm.parameters}, started=arm.started)
    made = Federation(
        train, arm.recipe, parameters, "plain", {}, cohort_size=arm.cohort or train.n_users, seed=seed,
        sampling="turns", start=_source(train, seed) if arm.started else None,
    )  # fmt: skip
    for number, _ in enumerate(made.run(min(arm.rounds, rounds or arm.rounds)), 1):
        tick(number)

    def scores(users: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        found = [
            made.half.scores(made.state, made.client_states[int(user)], train.history(int(user)))[row]
            for user, row in zip(users, items, strict=True)
        ]
        return np.stack(found)

    return evaluate_scores(scores, split.data, split.candidates)


def _source(train: Interactions, seed: int) -> ModelState:
    """Return the last state of the `privirec-k` task that a started task starts from."""
    parameters = {"items": train.n_items, **SOURCE}
    made = Federation(train, "privirec-k", parameters, "plain", {}, cohort_size=train.n_users, seed=seed)
    list(made.run(made.recipe.steps))  # type: ignore[attr-defined]
    return made.state
