"""PriviRec end to end: a server process, one client a user over HTTP, sums that only exist summed, and a graph filter.

The cohort is everyone, in every sum. Who drops out is gone for good, and still recommends to itself from its own row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from client_sdk.agreement.policy import Policy
from client_sdk.data.holdout import hold_out_share
from client_sdk.data.interactions import Interactions
from client_sdk.data.loaders import load_interactions
from client_sdk.data.synthetic import SyntheticConfig, synthetic
from client_sdk.demo.privirec_central import central_components
from client_sdk.demo.privirec_display import SpectrumDisplay
from client_sdk.demo.privirec_results import PriviRecResult, Ranked, SumDone
from client_sdk.demo.server import DemoServer, run_server
from client_sdk.errors import ClientSDKError
from client_sdk.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.filters import GFCF, Components, interaction_rows
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.simulation.fleet import Fleet
from client_sdk.simulation.fleet_options import FleetOptions
from client_sdk.simulation.fleet_rounds import FleetRound
from protocols.errors import ParameterError
from protocols.messages import RoundView, Schedule, TaskRequest, TaskView
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.privirec.state import privirec_state
from protocols.recipes.registry import recipe as make_recipe

__all__ = ["PRIVIREC_DATASETS", "PriviRecRequest", "run_privirec_demo"]

PRIVIREC_DATASETS: Final = {
    "synthetic": {"components": 16, "iterations": 4, "oversampling": 8, "rayleigh_ritz": True},
    "ml-100k": {"components": 48, "iterations": 4, "oversampling": 80, "rayleigh_ritz": True},
}
"""Data sets of the demo, with what suits their size."""

_POLICY: Final = Policy(mechanisms=frozenset({"masked", "plain"}))
_KEPT_APART: Final = 3
"""Clients by which two sums differ if at all: fewer leaving, and others leave with them."""


@dataclass(frozen=True)
class PriviRecRequest:
    """What the user asked for; None takes the data set's own setting. dropout: share of the clients, over the task."""

    dataset: str = "synthetic"
    data_dir: Path | None = None
    recipe: str = "privirec-k"
    iterations: int | None = None
    components: int | None = None
    dropout: float = 0.0
    seed: int = 0
    mechanism: str = "masked"
    server_dir: Path = Path("hushrec-demo/server")


def run_privirec_demo(
    request: PriviRecRequest, console: Console, watch: Callable[[str], None] | None = None
) -> PriviRecResult:
    """One task through one server process, then rankings; `watch` is told the server's URL once it listens.

    Raises `ParameterError` for settings that cannot work, `DataError` for files that are missing.
    """
    train, test = _split(request)
    users = np.flatnonzero(train.user_degrees() > 0)
    recipe = _recipe(request, train.n_items)
    task_of = _task_request(request, recipe, users.size)
    with run_server(request.server_dir) as server:
        if watch:
            watch(server.url)
        return _play(request, server, recipe, task_of, train, test, users, console)


def _split(request: PriviRecRequest) -> tuple[Interactions, Interactions]:
    if request.dataset not in PRIVIREC_DATASETS:
        raise ParameterError(f"the {request.recipe} demo knows {', '.join(PRIVIREC_DATASETS)}; got {request.dataset!r}")
    if request.dataset == "synthetic":
        return hold_out_share(
            synthetic(SyntheticConfig(users=120, items=240, positives=24, seed=request.seed)), rng=request.seed
        )
    return hold_out_share(load_interactions(request.dataset, request.data_dir), rng=request.seed)


def _recipe(request: PriviRecRequest, items: int) -> PriviRecK:
    asked = {"iterations": request.iterations, "components": request.components}
    parameters: dict[str, Any] = {**PRIVIREC_DATASETS[request.dataset], "items": items}
    parameters |= {name: value for name, value in asked.items() if value is not None}
    if request.recipe == "privirec":
        parameters["reveal_gram"] = True  # who runs this demo asks for it by name, and is told what it means
    made = make_recipe(request.recipe, parameters)
    if not isinstance(made, PriviRecK):
        raise ParameterError(f"this demo runs privirec-k and privirec, got {request.recipe!r}")
    return made


def _task_request(request: PriviRecRequest, recipe: PriviRecK, clients: int) -> TaskRequest:
    schedule = Schedule(
        rounds=recipe.steps,
        cohort_size=clients,
        min_clients=max(3, clients // 2),
        min_difference=_KEPT_APART,
        start_clients=clients,
        # with dropouts every sum waits for its deadline, so it is kept near what the others take
        collect_seconds=300.0 if request.dropout == 0 else max(30.0, clients / 5),
        stage_seconds=300.0,
    )
    return task_request(recipe.name, recipe, request.mechanism, schedule)


def _play(
    request: PriviRecRequest,
    server: DemoServer,
    recipe: PriviRecK,
    asked: TaskRequest,
    train: Interactions,
    test: Interactions,
    users: np.ndarray,
    console: Console,
) -> PriviRecResult:
    sums: list[SumDone] = []
    with (
        SpectrumDisplay(console, recipe, request.mechanism, users.size) as display,
        Operator(server.url, server.operator_token) as operator,
        Fleet(
            server.url,
            [train.positives(int(user)) for user in users],
            FleetOptions(
                policy=_POLICY,
                seed=request.seed,
                # the share per sum that leaves `1 - request.dropout` of the clients after the last sum
                dropout=1 - (1 - request.dropout) ** (1 / recipe.steps),
                dropout_rng=np.random.default_rng(request.seed),
            ),
        ) as fleet,
    ):
        organiser = TrialOrganiser() if request.mechanism == "masked" else None
        task = operator.create_task(
            asked.model_copy(update={"organiser": None if organiser is None else organiser.pin})
        )
        certificates = None if organiser is None else organiser.source
        fleet.enrol(operator.invite(task.task_id, users.size).invitation, None, certificates, display.enrolled)
        watcher = _watch_stages(server, task, display.stage)

        def on_round(report: FleetRound) -> None:
            sums.append(_sum_done(recipe, fleet, report))
            display.tell(sums[-1])

        rounds = fleet.run(on_round)
        watcher.join(30)
        display.note("ranking all items for every user, on its own device")
        ranked = _ranked(request, recipe, fleet, train, test, users)
        return _result(request, recipe, operator.task(task.task_id), rounds, sums, ranked, train, test)


def _watch_stages(server: DemoServer, task: TaskView, told: Callable[[RoundView], None]) -> threading.Thread:
    """Follow the stages beside the fleet, as an operator sees them: they are shorter than a round."""

    def follow() -> None:
        with suppress(ClientSDKError), Operator(server.url, server.operator_token) as operator:
            for view in operator.watch(task.task_id, poll_seconds=5.0):
                told(view)

    thread = threading.Thread(target=follow, name="stages", daemon=True)
    thread.start()
    return thread


def _sum_done(recipe: PriviRecK, fleet: Fleet, report: FleetRound) -> SumDone:
    state = privirec_state(fleet.model())
    complete = report.state == "complete"
    sum_index = state.sum_index if complete else state.sum_index + 1
    sent = report.bytes_up / max(1, len(report.reports))
    done = SumDone(
        report.number,
        sum_index,
        recipe.sum_of(sum_index),
        report.survivors,
        report.seconds,
        sent,
        failure=report.failure,
    )
    if not complete or done.kind != "iteration":
        return done
    values = [float(value) for value in state.singular_values[: recipe.parameters.components]]
    return SumDone(
        done.number, done.sum_index, done.kind, done.survivors, done.seconds, done.bytes_up, None,
        state.captured, state.change, values,
    )  # fmt: skip


def _ranked(
    request: PriviRecRequest,
    recipe: PriviRecK,
    fleet: Fleet,
    train: Interactions,
    test: Interactions,
    users: np.ndarray,
) -> list[Ranked]:
    """Recall and NDCG of GF-CF: each device's own scores, and the same with everyone's data in one place."""
    on_devices = np.zeros((train.n_users, train.n_items), dtype=np.float32)
    for user, scores in zip(users, fleet.scores(), strict=True):
        on_devices[user] = scores
    rows = interaction_rows(train)

    def by(components: Components) -> RankingResult:
        return rank_all(lambda asked: GFCF().scores(components, rows[asked]), train, test, users=users)

    factors, exact = central_components(train, recipe.parameters.components)
    found = [
        Ranked(f"GF-CF, {recipe.name} {request.mechanism}", rank_all(on_devices.__getitem__, train, test, users=users))
    ]
    if recipe.name == "privirec-k":
        found.append(Ranked("GF-CF, central, the same vectors exactly", by(factors)))
    return [*found, Ranked("GF-CF, central, the whole matrix", by(exact))]


def _result(
    request: PriviRecRequest,
    recipe: PriviRecK,
    task: TaskView,
    rounds: Sequence[FleetRound],
    sums: Sequence[SumDone],
    ranked: Sequence[Ranked],
    train: Interactions,
    test: Interactions,
) -> PriviRecResult:
    return PriviRecResult(
        dataset=request.dataset,
        users=train.n_users,
        items=train.n_items,
        interactions=train.size + test.size,
        recipe=recipe.name,
        parameters=recipe.parameters.model_dump(),
        mechanism=request.mechanism,
        plan=task.plan,
        dropped=sum(len(done.missed) for done in rounds),
        sums=sums,
        ranked=ranked,
        warnings=task.warnings,
    )
