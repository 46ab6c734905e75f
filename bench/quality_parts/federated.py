"""Federated recipes with their recommended parameters: how well every user's own scores rank.

One process, plain sums: masks and encryption change a sum by less than 1e-6, which no ranking shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from bench.quality_parts.sets import Split
from client_sdk.lab.data.interactions import interaction_rows
from client_sdk.lab.evaluation.leave_one_out import FullScorer
from client_sdk.lab.federation import Federation
from client_sdk.lab.simulate import spectrum_of
from client_sdk.training.privirec import components_of, matching_filter
from protocols.advice import advise, parameters_for
from protocols.recipes.privirec import PriviRecK

__all__ = ["ARMS", "Arm", "train_scorer"]

COHORT: Final = 100


@dataclass(frozen=True)
class Arm:
    """One way of training. rounds: sums of the task; 0 for the rounds and the cohort of `advise`. cohort: clients in a
    sum; 0: all.

    started: whether the task starts from a `privirec-k` task, whose rounds are not counted in its own. graph_filter: of
    `privirec-k`; None for the default.
    """

    recipe: str
    rounds: int = 0
    cohort: int = COHORT
    parameters: Mapping[str, Any] = field(default_factory=dict)
    started: bool = False
    graph_filter: str | None = None


_PAPER: Final[Mapping[str, Any]] = {"components": 64, "user_exponent": 0.5, "item_exponent": None}

_OTHER_SIZES: Final = {
    f"privirec-k-{count}": Arm("privirec-k", 6, cohort=0, parameters={"components": count})
    for count in (16, 32, 64, 128, 512)
}

ARMS: Final[Mapping[str, Arm]] = {
    "privirec-k": Arm("privirec-k", 6, cohort=0),
    "privirec-k-gf-cf": Arm("privirec-k", 6, cohort=0, parameters=_PAPER, graph_filter="gf-cf"),
    **_OTHER_SIZES,
    "colr-started": Arm("colr", 20, started=True),
    "fedmf-started": Arm("fedmf", 10, started=True),
    "pfedclr-started": Arm("pfedclr", 10, started=True),
    "fedmf": Arm("fedmf"),
    "colr": Arm("colr"),
    "pfedclr": Arm("pfedclr", 105),
}
"""`privirec-k-gf-cf` has the papers' scaling and filter, with 64 vectors."""


def train_scorer(
    arm: Arm,
    split: Split,
    seed: int,
    tick: Callable[[int], object] = lambda _: None,
    rounds: int | None = None,
) -> FullScorer:
    """Train one task of the arm and return each user's scores of all items by the client's own model.

    tick: called with the number of each completed round. rounds: fewer rounds, for a quick run.
    """
    train = split.data.train
    given: dict[str, Any] = {"items": train.n_items, **arm.parameters}
    if "components" in given:
        given["components"] = min(given["components"], train.n_items)
    start = spectrum_of(train, seed) if arm.started else None
    parameters = parameters_for(arm.recipe, given, started=arm.started)
    clients = int(np.count_nonzero(train.user_degrees()))
    usual, cohort = arm.rounds, arm.cohort or clients
    if not usual:
        usual, cohort = advise(train.n_items, clients, train.size)
    made = Federation(train, arm.recipe, parameters, cohort_size=cohort, seed=seed, sampling="turns", start=start)
    whole = arm.recipe == "privirec-k"  # which has no model to rank with after two sums
    for number, _ in enumerate(made.run(usual if whole else min(usual, rounds or usual)), 1):
        tick(number)
    if arm.graph_filter is not None:
        assert isinstance(made.recipe, PriviRecK)
        components, rows = components_of(made.recipe, made.state), interaction_rows(train)
        chosen = matching_filter(made.recipe, arm.graph_filter)
        return lambda users: chosen.scores(components, rows[users])
    return made.scores
