"""Run the demo: load the data, start a server, train in every arm, and collect the results."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Console

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import Report, load_dataset, load_interactions
from client_sdk.lab.demo.arms import Arm, SharedSetup, demo_identities, run_arm
from client_sdk.lab.demo.report import Display
from client_sdk.lab.demo.results import (
    DEMO_MECHANISMS,
    ArmResult,
    DemoResult,
    DemoSettings,
    has_settings,
    sampled_users,
    settings_for,
)
from client_sdk.lab.evaluation.controls import popularity_control
from client_sdk.lab.evaluation.leave_one_out import candidates_of
from client_sdk.lab.local_server import run_server
from protocols.errors import ParameterError
from protocols.messages import TaskView
from protocols.recipes.recommended import parameters_for

__all__ = [
    "DemoRequest",
    "arms_of",
    "chosen_settings",
    "run_demo",
    "shared_setup",
]


@dataclass(frozen=True)
class DemoRequest:
    """What the user asked for. rounds, cohort, rank: None for the setting of the data set."""

    dataset: str = "synthetic"
    data_dir: Path | None = None
    columns: Columns | None = None
    recipe: str = "colr"
    rounds: int | None = None
    cohort: int | None = None
    rank: int | None = None
    mechanism: str = "ckks"
    parameter_set: str = "standard"
    dropout: float = 0.0
    seed: int = 0
    server_dir: Path = Path("hushrec-demo/server")


def run_demo(
    request: DemoRequest,
    console: Console,
    on_start: Callable[[str], None] | None = None,
    report: Report | None = None,
) -> DemoResult:
    """Run every arm through one server process and return the results.

    on_start: called with the server's URL when it is ready. report: called with what was found in a file. Raises
    `ParameterError` for an unknown recipe and `DataError` for an unknown data set or missing files, before anything is
    written.
    """
    if request.recipe != "colr":
        raise ParameterError(f"the demo runs colr, privirec-k or privirec, not {request.recipe!r}")
    settings = chosen_settings(request)
    shared, replaced = shared_setup(request, settings, report)
    settings = replace(settings, cohort=shared.cohort)
    arms = arms_of(request, settings)
    with run_server(request.server_dir) as server, Display(console, arms, settings.rounds, settings.cohort) as display:
        if on_start:
            on_start(server.url)
        done = [run_arm(arm, shared, server, display.show) for arm in arms]
    results = [result for result, _ in done]
    control = popularity_control(shared.data, shared.candidates)
    results.append(ArmResult("popularity", control.hr, control.ndcg, note="the same list for every user"))
    return _result(request, settings, shared, results, done[0][1], replaced)


def chosen_settings(request: DemoRequest) -> DemoSettings:
    """Return the settings of the data set, with the user's choices. Raises `ParameterError` if the rank exceeds dim."""
    settings = settings_for(request.dataset)
    rank = request.rank or settings.rank
    if rank > settings.dim:
        raise ParameterError(f"rank {rank} is greater than the dimension {settings.dim} of the {request.dataset} demo")
    return replace(
        settings, rounds=request.rounds or settings.rounds, cohort=request.cohort or settings.cohort, rank=rank
    )


def shared_setup(request: DemoRequest, settings: DemoSettings, report: Report | None = None) -> tuple[SharedSetup, int]:
    """Return the data and clients that all arms share, and how many invalid published negatives were replaced.

    Without a cohort in the request it is at most all users. Raises `ParameterError` if the request's is larger.
    """
    data = _data(request, report)
    negatives, replaced = candidates_of(data, np.random.default_rng(request.seed))
    clients = int(np.count_nonzero(np.diff(data.train.indptr) > 0))
    cohort = settings.cohort if request.cohort else min(settings.cohort, clients)
    if cohort > clients:
        raise ParameterError(f"a cohort of {cohort} is greater than the {clients} users with interactions")
    shared = SharedSetup(
        data=data,
        candidates=negatives,
        identities=demo_identities(clients, request.seed),
        training=settings.training,
        rounds=settings.rounds,
        cohort=cohort,
        # With dropouts every round waits for its deadline, so the deadline is near the time that a round takes.
        collect_seconds=120.0 if request.dropout == 0 else 5.0,
        dropout=request.dropout,
        seed=request.seed,
        evaluate_every=min(settings.evaluate_every, max(1, settings.rounds // 10)),
    )
    return shared, replaced


def _data(request: DemoRequest, report: Report | None) -> LeaveOneOut:
    if has_settings(request.dataset):
        return load_dataset(request.dataset, request.data_dir, request.seed, request.columns, report)
    whole = load_interactions(request.dataset, request.data_dir, request.columns, report)
    return leave_one_out(sampled_users(whole, request.seed, report), request.seed)


def arms_of(request: DemoRequest, settings: DemoSettings) -> list[Arm]:
    """Return the arms: the recipe over sums that hide contributions, the same in plain, and full FedMF over the former.

    All count items first. Raises `ParameterError` for a mechanism other than ckks and oneshot.
    """
    if request.mechanism not in DEMO_MECHANISMS:
        known = " or ".join(DEMO_MECHANISMS)
        raise ParameterError(f"this demo runs {known}, not {request.mechanism!r}: that is for --recipe privirec-k")
    hidden, how = request.mechanism, "encrypted" if request.mechanism == "ckks" else "one-shot"
    shape = {"dim": settings.dim, "clip": settings.clip}
    low = parameters_for("colr", {**shape, "rank": settings.rank})
    full = parameters_for("fedmf", shape)
    parameters = {"set": request.parameter_set} if hidden == "ckks" else {}
    return [
        Arm(f"CoLR-{settings.rank} {how}", "colr", low, hidden, parameters),
        Arm(f"CoLR-{settings.rank} plain", "colr", low, "plain", {}),
        Arm(f"FedMF {how}", "fedmf", full, hidden, parameters),
    ]


def _result(
    request: DemoRequest,
    settings: DemoSettings,
    shared: SharedSetup,
    arms: list[ArmResult],
    task: TaskView,
    replaced: int,
) -> DemoResult:
    train = shared.data.train
    protocol = "leave-one-out against 99 negatives, training negatives drawn from all items outside the training items"
    if replaced:
        protocol += f", {replaced} invalid negatives of the published file replaced"
    return DemoResult(
        dataset=request.dataset,
        users=train.n_users,
        items=train.n_items,
        interactions=int(train.items.size) + int((shared.data.test_items >= 0).sum()),
        rounds=settings.rounds,
        usual_rounds=settings_for(request.dataset).rounds,
        cohort=settings.cohort,
        recipe=request.recipe,
        plan=task.plan,
        arms=arms,
        evaluation=protocol,
        machine={
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "Python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "tenseal")},
        },
        warnings=task.warnings,
    )
