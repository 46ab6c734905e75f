"""The demo of PriviRec: masked or one-shot sums over all clients, the spectrum as it converges, and ranking quality.

Every client is in the cohort of every sum. A client that drops out stays out; it can still compute recommendations
from its own row.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final

import numpy as np
from rich.console import Console

from client_sdk.agreement.policy import Policy
from client_sdk.errors import ClientSDKError
from client_sdk.lab.central import central_components
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.published import Report, load_interactions
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.demo import ArmResult, DemoRequest, DemoResult, SumResult, sampled_users
from client_sdk.lab.demo.arms import with_costs
from client_sdk.lab.demo.report import SUM_HEADINGS, Display, sum_cells, sum_line
from client_sdk.lab.enrolled import enrolled_fleet
from client_sdk.lab.evaluation.controls import popularity_scores
from client_sdk.lab.evaluation.metrics import RankingResult, rank_all
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import DemoServer
from client_sdk.lab.measures import Advised, Measured
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.training.graph_filters import Components
from client_sdk.training.privirec import matching_filter
from protocols.advice import parameters_for
from protocols.errors import ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages import RoundView, Schedule, TaskRequest, TaskView
from protocols.messages.stages import MASKED_STATES, RoundState
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.state import state_as
from protocols.sums.masked.masks import SECRET_BYTES, Mask, add_masks
from protocols.sums.masked.plan import MASKED, MaskedPlan
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.registry import mechanism_entry

PRIVIREC_DATASETS: Final = {
    "synthetic": {"components": 16, "iterations": 4, "oversampling": 8},
    "ml-100k": {"components": 48, "iterations": 4, "oversampling": 80},
}
"""Data sets of the demo, with sizes that are quick for `privirec`; all other parameters are the recommended ones."""

_MIN_DIFFERENCE: Final = 3
"""Smallest number of clients by which two sums may differ, unless they are over the same clients. If fewer drop out,
the server excludes others with them."""


def split_of(request: DemoRequest, report: Report | None = None) -> tuple[Interactions, Interactions]:
    """Return training and test interactions of the request's data set. Raises `DataError`."""
    if request.dataset == "synthetic":
        return hold_out_share(
            synthetic(SyntheticConfig(users=120, items=240, positives=24, seed=request.seed)), rng=request.seed
        )
    whole = load_interactions(request.dataset, request.data_dir, request.columns, report, request.skip_bad)
    if request.dataset not in PRIVIREC_DATASETS:
        whole = sampled_users(whole, request.seed, report)
    return hold_out_share(whole, rng=request.seed)


def _recipe(request: DemoRequest, items: int, clients: int) -> PriviRecK:
    given = {"items": items, "iterations": request.rounds, "components": request.rank}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    chosen["validation"] = 0.0  # the demo compares one filter over several components
    if request.recipe == "privirec":
        usual: dict[str, Any] = PRIVIREC_DATASETS.get(request.dataset, PRIVIREC_DATASETS["ml-100k"])
        components = min(int(usual["components"]), items)
        usual |= {"components": components, "oversampling": min(int(usual["oversampling"]), items - components)}
        # the user chose this recipe by name; the task's warnings say what it reveals
        chosen = {**usual, **chosen, "reveal_gram": True}
    parameters = parameters_for(request.recipe, chosen, clients=clients)
    made = make_recipe(request.recipe, parameters)
    assert isinstance(made, PriviRecK)  # noqa: S101 - `run_demo` asks for no other
    return made


# --- how long the sums of a PriviRec task take on this machine, estimated before the first one from measured parts ---

_SAMPLE_CLIENTS: Final = 6
_PATIENCE: Final = 8
"""Deadline of a stage / the time that a whole sum is expected to take."""
_SAMPLE_MASKS: Final = 4


def estimated_seconds(demo: SpectrumDemo) -> float | None:
    """Return the wall-clock seconds that all sums of the task take; None for plain sums, which take no time to mention.

    Every client expands a mask for each neighbour and one of its own, and the server one for each client; every pair
    agrees on a key and exchanges shares. The time of one mask and of one pair is measured here, in a fraction of a
    second. Requests, catching up and training are left out, so the real time is longer.
    """
    if demo.mechanism != "masked":
        return None
    clients = demo.users.size
    pair = _seconds_of_a_pair()
    total = 0.0
    for sum_index in range(1, demo.recipe.steps + 1):
        plan = MASKED.plan({}, demo.recipe.layout(sum_index), clients)
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


# --- ranking quality of the task's filter: with the scores of the devices, and with all data in one place ------------


def _ranked(name: str, ranking: RankingResult) -> ArmResult:
    values = {f"NDCG@{ranking.k}": ranking.ndcg, f"Recall@{ranking.k}": ranking.recall}
    return ArmResult(name, Measured(values, ranking.user_ndcg))


def rank_filters(demo: SpectrumDemo, fleet: Fleet) -> list[ArmResult]:
    """Return Recall and NDCG over the test items for several sources of the filter's components.

    First the scores that each client computes with its own rows, then the filter on central data: with the same number
    of exact singular vectors (privirec-k only), and with the whole item-item matrix. Popularity is the last.
    """
    recipe, train, users = demo.recipe, demo.train, demo.users
    client_scores = np.zeros((train.n_users, train.n_items), dtype=np.float32)
    for user, scores in zip(users, fleet.scores(), strict=True):
        client_scores[user] = scores
    rows, graph_filter = interaction_rows(train), matching_filter(recipe)

    def rank(components: Components) -> RankingResult:
        return rank_all(lambda asked: graph_filter.scores(components, rows[asked]), train, demo.test, users=users)

    p = recipe.parameters
    degrees, exponents = train.item_degrees().astype(np.float64), (p.user_exponent, p.degree_exponent)
    exact = central_components(rows, degrees, p.components, exponents)
    on_devices = rank_all(client_scores.__getitem__, train, demo.test, users=users)
    popular = rank_all(popularity_scores(train), train, demo.test, users=users)
    found = [_ranked(f"EASE, {recipe.name} {demo.mechanism}", on_devices)]
    if recipe.name == "privirec-k":
        found.append(_ranked("EASE, central, the same vectors exactly", rank(replace(exact, gram=None))))
    whole = _ranked("EASE, central, the whole matrix", rank(exact))
    return [*found, whole, _ranked("popularity", popular)]


# --- the whole demo --------------------------------------------------------------------------------------------------

_STAGES: Final = {
    "plain": ("collecting", "folding", "complete"),
    "masked": (*MASKED_STATES, RoundState.COMPLETE),
    "oneshot": ("collecting", "confirming", "unmasking", "complete"),
}


class SpectrumDemo:
    """PriviRec over sums of all clients, ranked by EASE on the devices, beside EASE on central data and popularity.

    users: those with training interactions, ascending: the clients of the demo, in this order. report: called with what
    was found in a file. Raises `ParameterError` for invalid parameters and another mechanism, and `DataError` for an
    unknown data set or missing files.
    """

    def __init__(self, request: DemoRequest, report: Report | None = None) -> None:
        self.request, self.mechanism = request, request.mechanism or "masked"
        if self.mechanism not in _STAGES:
            known = ", ".join(sorted(_STAGES))
            raise ParameterError(f"this demo runs {known} sums, not {self.mechanism!r}: that is for --recipe colr")
        if request.cohort is not None:
            raise ParameterError(f"{request.recipe} sums over all clients in every round: leave out the cohort")
        self.train, self.test = split_of(request, report)
        self.users = self.train.active_users
        self.recipe = _recipe(request, self.train.n_items, self.users.size)
        self._organiser = TrialOrganiser() if mechanism_entry(self.mechanism).hides else None

    def announcement(self) -> str:
        """Return what the demo is about to do, and how long its sums will take on this machine."""
        words = (
            f"{self.recipe.name} on [bold]{self.request.dataset}[/]: every client is in every {self.mechanism} sum; "
            "nothing is trained."
        )
        seconds = estimated_seconds(self)
        if seconds is None:
            return words
        span = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
        sums = f"{self.recipe.steps} masked sums of {self.users.size} clients"
        return f"{words}\n{sums} take about {span} on this machine, longer if it is busy."

    def run(self, server: DemoServer, console: Console) -> DemoResult:
        """Run one task and rank all items for all users."""
        name, steps, clients = self.recipe.name, self.recipe.steps, self.users.size
        rows = [self.train.positives(int(user)) for user in self.users]
        given = server, self._task_request(), rows, self._options(), self._organiser
        with (
            Display(console, {name: steps}, SUM_HEADINGS) as display,
            enrolled_fleet(*given, partial(display.stage, name)) as (operator, fleet, task),
        ):

            def show_stage(view: RoundView) -> None:
                subject = f"round {view.number}, sum {view.step} of {steps}"
                stages = _STAGES[self.mechanism]
                words = " > ".join(f"[bold]{stage}[/]" if stage == view.state else stage for stage in stages)
                if view.state in stages:
                    display.stage(name, words, (subject, view.state))

            watcher = _watch_stages(server, task, show_stage)
            sums: list[SumResult] = []

            def on_round(report: FleetRound) -> None:
                sums.append(_sum_result(self.recipe, fleet, report))
                display.round(name, report, sum_line(sums[-1]), sum_cells(sums[-1]))

            rounds = fleet.run(on_round)
            watcher.join(30)
            display.stage(name, "ranking all items for each user, on its own device")
            first, *others = rank_filters(self, fleet)
            first = replace(with_costs(first, rounds), seconds=sum(done.seconds for done in sums))
            task = operator.task(task.task_id)
        return DemoResult(
            dataset=self.request.dataset,
            users=self.train.n_users,
            items=self.train.n_items,
            interactions=self.train.size + self.test.size,
            recipe=name,
            mechanism=self.mechanism,
            rounds=len(rounds),
            cohort=clients,
            plan=task.plan,
            arms=[first, *others],
            evaluation="full ranking of all items outside the training items, against held-out items of each user",
            next=Advised(trains=False),
            sums=sums,
            parameters=self.recipe.parameters.model_dump(),
            warnings=task.warnings,
        )

    def _task_request(self) -> TaskRequest:
        """Return the task: one round for each sum of the recipe, over all clients."""
        clients = self.users.size
        # a stage is a part of a sum; a machine that is busy with other things takes several times as long
        patient = max(300.0, _PATIENCE * (estimated_seconds(self) or 0.0) / self.recipe.steps)
        all_answer = self.request.dropout == 0
        schedule = Schedule(
            rounds=self.recipe.steps,
            cohort_size=clients,
            min_clients=max(3, clients // 2),
            min_difference=_MIN_DIFFERENCE,
            start_clients=clients,
            # With dropouts every sum waits for its deadline, so the deadline is near the time that a sum takes.
            collect_seconds=patient if all_answer else max(30.0, clients / 5),
            stage_seconds=patient if all_answer else 300.0,
        )
        organiser = None if self._organiser is None else self._organiser.pin
        return task_request(self.recipe.name, self.recipe, self.mechanism, schedule, organiser=organiser)

    def _options(self) -> FleetOptions:
        return FleetOptions(
            policy=Policy(
                mechanisms=frozenset(_STAGES),
                reveal_gram=self.recipe.parameters.reveal_gram,
                trust_models=True,
            ),
            seed=self.request.seed,
            # the share per sum that leaves `1 - request.dropout` of the clients after the last sum
            dropout=1 - (1 - self.request.dropout) ** (1 / self.recipe.steps),
            dropout_rng=np.random.default_rng(self.request.seed),
        )


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
    state = state_as(fleet.model(), PriviRecState)
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
    values = [float(value) for value in state.singular_values]
    return replace(result, captured=state.captured, change=state.change, singular_values=values)
