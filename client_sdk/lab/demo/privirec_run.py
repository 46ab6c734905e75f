"""Run PriviRec end to end: a server process, one client per user over HTTP, masked or one-shot sums and a filter.

Every client is in the cohort of every sum. A client that drops out stays out; it can still compute recommendations
from its own row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
from rich.console import Console

from client_sdk.agreement.policy import Policy
from client_sdk.errors import ClientSDKError
from client_sdk.lab.data.published import Report
from client_sdk.lab.demo.privirec import (
    FilterRanking,
    PriviRecRequest,
    PriviRecResult,
    PriviRecSetup,
    SumResult,
    estimated_seconds,
    prepare,
    rank_filters,
)
from client_sdk.lab.demo.privirec_report import SpectrumDisplay
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.operator import Operator
from protocols.messages import RoundView, TaskView
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.privirec.state import privirec_state
from protocols.sums.oneshot.parameters import OneshotParameters

__all__ = [
    "run_privirec_demo",
]


_POLICY: Final = Policy(mechanisms=frozenset({"masked", "oneshot", "plain"}))


def run_privirec_demo(
    request: PriviRecRequest,
    console: Console,
    on_start: Callable[[str], None] | None = None,
    report: Report | None = None,
) -> PriviRecResult:
    """Run one task on a server process and rank all items for all users.

    on_start: called with the server's URL when it is ready. report: called with what was found in a file. Raises
    `ParameterError` for invalid settings and `DataError` for missing files, before anything is written.
    """
    setup = prepare(request, report)
    task = setup.task_request()
    _print_estimate(setup, console)
    with run_server(request.server_dir) as server:
        if on_start:
            on_start(server.url)
        with (
            SpectrumDisplay(console, setup.recipe, request.mechanism, setup.users.size) as display,
            Operator(server.url, server.operator_token) as operator,
            _fleet(setup, server) as fleet,
        ):
            created = operator.create_task(task)
            invitation = operator.invite(created.task_id, setup.users.size).invitation
            certificates = None if setup.organiser is None else setup.organiser.source
            fleet.enrol(invitation, None, certificates, display.show_enrolled)
            if request.mechanism == "oneshot":
                members = operator.invite(created.task_id, OneshotParameters().committee, "committee").invitation
                fleet.enrol_committee(members, certificates)
            watcher = _watch_stages(server, created, display.show_stage)
            sums: list[SumResult] = []

            def on_round(report: FleetRound) -> None:
                sums.append(_sum_result(setup.recipe, fleet, report))
                display.show_sum(sums[-1])

            rounds = fleet.run(on_round)
            watcher.join(30)
            display.show_text("ranking all items for each user, on its own device")
            ranked = rank_filters(setup, fleet)
            return _result(setup, operator.task(created.task_id), rounds, sums, ranked)


def _print_estimate(setup: PriviRecSetup, console: Console) -> None:
    """Print how long the sums will take, before anything is started."""
    seconds = estimated_seconds(setup)
    if seconds is None:
        return
    span = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    sums = f"{setup.recipe.steps} masked sums of {setup.users.size} clients"
    console.print(f"{sums} take about {span} on this machine, longer if it is busy.", soft_wrap=True)


def _fleet(setup: PriviRecSetup, server: DemoServer) -> Fleet:
    request = setup.request
    options = FleetOptions(
        policy=_POLICY,
        seed=request.seed,
        # the share per sum that leaves `1 - request.dropout` of the clients after the last sum
        dropout=1 - (1 - request.dropout) ** (1 / setup.recipe.steps),
        dropout_rng=np.random.default_rng(request.seed),
    )
    return Fleet(server.url, [setup.train.positives(int(user)) for user in setup.users], options)


def _watch_stages(server: DemoServer, task: TaskView, on_view: Callable[[RoundView], None]) -> threading.Thread:
    """Start a thread that calls `on_view` for each stage. The fleet reports whole rounds only."""

    def follow() -> None:
        with suppress(ClientSDKError), Operator(server.url, server.operator_token) as operator:
            for view in operator.watch(task.task_id, poll_seconds=5.0):
                on_view(view)

    thread = threading.Thread(target=follow, name="stages", daemon=True)
    thread.start()
    return thread


def _sum_result(recipe: PriviRecK, fleet: Fleet, report: FleetRound) -> SumResult:
    state = privirec_state(fleet.model())
    complete = report.state == "complete"
    sum_index = state.sum_index if complete else state.sum_index + 1
    result = SumResult(
        number=report.number,
        sum_index=sum_index,
        kind=recipe.sum_of(sum_index),
        survivors=report.survivors,
        seconds=report.seconds,
        bytes_up=report.bytes_up / max(1, len(report.reports)),
        failure=report.failure,
    )
    if not complete or result.kind != "iteration":
        return result
    values = [float(value) for value in state.singular_values[: recipe.parameters.components]]
    return replace(result, captured=state.captured, change=state.change, singular_values=values)


def _result(
    setup: PriviRecSetup,
    task: TaskView,
    rounds: Sequence[FleetRound],
    sums: Sequence[SumResult],
    ranked: Sequence[FilterRanking],
) -> PriviRecResult:
    return PriviRecResult(
        dataset=setup.request.dataset,
        users=setup.train.n_users,
        items=setup.train.n_items,
        interactions=setup.train.size + setup.test.size,
        recipe=setup.recipe.name,
        parameters=setup.recipe.parameters.model_dump(),
        mechanism=setup.request.mechanism,
        plan=task.plan,
        dropped=sum(len(report.missed) for report in rounds),
        sums=sums,
        ranked=ranked,
        warnings=task.warnings,
    )
