"""Federated recipes with their recommended parameters: HR@10 and NDCG@10 of every user's own scores.

One process, plain sums: masks and encryption change a sum by less than 1e-6, which no ranking shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from bench.quality_parts.sets import Split
from client_sdk.data.interactions import Interactions
from client_sdk.evaluation.leave_one_out import EvaluationResult, evaluate_scores
from client_sdk.simulation.federation import Federation
from client_sdk.training.privirec import components_of, matching_filter
from protocols.crypto.domain import derive_seed
from protocols.recipes.base import ModelState
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.privirec.state import PriviRecState
from protocols.recipes.recommended import advise_start, parameters_for
from protocols.recipes.registry import recipe

__all__ = ["ARMS", "Arm", "spectrum", "train_and_evaluate"]

COHORT: Final = 100


@dataclass(frozen=True)
class Arm:
    """One way of training. rounds: sums of the task. cohort: clients in a sum; 0: all, once in each.

    started: whether the task starts from a `privirec-k` task, whose rounds are not counted in its own. longer: rounds
    on the data sets on whose validation rows the curve still rose. graph_filter: of `privirec-k`; None for the default.
    """

    recipe: str
    rounds: int
    cohort: int = COHORT
    parameters: Mapping[str, Any] = field(default_factory=dict)
    started: bool = False
    longer: Mapping[str, int] = field(default_factory=dict)
    graph_filter: str | None = None


ARMS: Final[Mapping[str, Arm]] = {
    "privirec-k": Arm("privirec-k", 6, cohort=0),
    "privirec-k-bspm-lm": Arm("privirec-k", 6, cohort=0, graph_filter="bspm-lm"),
    "privirec-k-ease": Arm("privirec-k", 6, cohort=0, graph_filter="ease"),
    "colr-started": Arm("colr", 20, started=True),
    "fedmf-started": Arm("fedmf", 10, started=True),
    "pfedclr-started": Arm("pfedclr", 10, started=True),
    "fedmf": Arm("fedmf", 205),
    "colr": Arm("colr", 205, longer={"filmtrust": 305}),
    "pfedclr": Arm("pfedclr", 105),
}


def train_and_evaluate(
    arm: Arm,
    dataset: str,
    split: Split,
    seed: int,
    tick: Callable[[int], object] = lambda _: None,
    rounds: int | None = None,
) -> EvaluationResult:
    """Train one task of the arm and rank each user's held-out item by the client's own scores.

    tick: called with the number of each completed round. rounds: fewer rounds, for a quick run.
    """
    usual = arm.longer.get(dataset, arm.rounds)
    train = split.data.train
    if arm.recipe == "privirec-k":
        return _filtered(arm, split, seed)
    given, start = {"items": train.n_items, **arm.parameters}, None
    if arm.started:
        sizes = advise_start(arm.recipe, train.n_items, train.size)
        start = spectrum(train, {"items": train.n_items, "components": sizes.components, "rayleigh_ritz": True}, seed)
        given |= {"dim": sizes.dim}
    parameters = parameters_for(arm.recipe, given, started=arm.started)
    made = Federation(
        train, arm.recipe, parameters, "plain", {}, cohort_size=arm.cohort, seed=seed, sampling="turns", start=start
    )
    for number, _ in enumerate(made.run(min(usual, rounds or usual)), 1):
        tick(number)

    def scores(users: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        found = [
            made.half.scores(made.state, made.client_states[int(user)], train.history(int(user)))[row]
            for user, row in zip(users, items, strict=True)
        ]
        return np.stack(found)

    return evaluate_scores(scores, split.data, split.candidates)


def _filtered(arm: Arm, split: Split, seed: int) -> EvaluationResult:
    """Rank by the graph filter, on the components that the arm's task ends with."""
    train = split.data.train
    made = recipe("privirec-k", parameters_for("privirec-k", {"items": train.n_items, **arm.parameters}))
    assert isinstance(made, PriviRecK)
    components = components_of(made, spectrum(train, made.parameters.model_dump(), seed))
    rows, graph_filter = _rows(train), matching_filter(made, arm.graph_filter)

    def scores(users: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        return np.take_along_axis(graph_filter.scores(components, rows[users]), items.astype(np.intp), axis=1)

    return evaluate_scores(scores, split.data, split.candidates, width=max(1, train.n_items // 100))


def spectrum(train: Interactions, parameters: Mapping[str, Any], seed: int) -> ModelState:
    """Return the last state of a `privirec-k` task of all clients.

    Each sum is computed at once, R~^T (R~ Q), instead of from the clients' dense vectors, whose sum it is up to the
    rounding of float64; a test compares it with `Federation`.
    """
    made = recipe("privirec-k", parameters)
    assert isinstance(made, PriviRecK)
    rows, task_seed = _rows(train), derive_seed(str(seed).encode(), "simulation task")
    state, clients = made.initial_state(task_seed), int(np.count_nonzero(train.user_degrees()))
    for number in range(1, made.steps + 1):
        if made.is_done(state):
            break
        total = train.item_degrees().astype(np.float64) if number == 1 else _product(rows, state, made)
        state = made.absorb(state, made.round_spec(task_seed, number), total, clients)
    return state


def _product(rows: csr_array[Any, Any], state: PriviRecState, made: PriviRecK) -> NDArray[np.float64]:
    """Return P Q of the next iteration, as the clients' contributions add up to it; float64 (items * columns,)."""
    exponent, degrees = made.parameters.user_exponent, np.maximum(np.diff(rows.indptr), 1).astype(np.float64)
    scales = np.power(state.item_degrees, exponent - 1, out=np.zeros(rows.shape[1]), where=state.item_degrees > 0)
    scaled = diags_array(degrees**-exponent) @ rows.astype(np.float64) @ diags_array(scales)
    return np.asarray(scaled.T @ (scaled @ state.basis.astype(np.float64))).ravel()


def _rows(train: Interactions) -> csr_array[Any, Any]:
    """Return the binary matrix of all users' rows, float32 (users, items)."""
    shape = (train.n_users, train.n_items)
    return csr_array((np.ones(train.size, np.float32), train.items, train.indptr), shape=shape)
