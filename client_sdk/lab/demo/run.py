"""Run the demo: load the data, start a server, run the arms of the recipe, and collect the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.console import Console

from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import Report, load_dataset, load_interactions
from client_sdk.lab.demo.arms import Arm, FactorSettings, SharedSetup, demo_identities, run_arm
from client_sdk.lab.demo.report import Display
from client_sdk.lab.demo.results import ArmResult, DemoRequest, DemoResult, of_leave_one_out, sampled_users
from client_sdk.lab.evaluation.controls import popularity_control
from client_sdk.lab.evaluation.leave_one_out import candidates_of
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.lab.measures import Advised
from client_sdk.training.mf import MFConfig
from protocols.advice import parameters_for
from protocols.errors import ParameterError

if TYPE_CHECKING:
    from client_sdk.lab.demo.spectrum import SpectrumDemo


def run_demo(
    request: DemoRequest,
    console: Console,
    on_start: Callable[[str], None] | None = None,
    report: Report | None = None,
) -> DemoResult:
    """Run every arm through one server process and return the results.

    on_start: called with the server's URL when it is ready. report: called with what was found in a file. Before
    anything is written, raises `ParameterError` for an unknown recipe and settings that do not fit, and `DataError` for
    an unknown data set or missing files.
    """
    demo: FactorDemo | SpectrumDemo
    if request.recipe == "colr":
        demo = FactorDemo(request, report)
    elif request.recipe in ("privirec-k", "privirec"):
        from client_sdk.lab.demo.spectrum import SpectrumDemo  # it needs scipy, which the other demo does not

        demo = SpectrumDemo(request, report)
    else:
        raise ParameterError(f"the demo runs colr, privirec-k or privirec, not {request.recipe!r}")
    console.print(demo.announcement(), soft_wrap=True)
    with run_server(request.server_dir) as server:
        if on_start:
            on_start(server.url)
        return demo.run(server, console)


# --- CoLR: the settings of each data set, with the user's choices ----------------------------------------------------


_SETTINGS: Final = {
    "synthetic": FactorSettings(16, 4, 4.0, 40, 40, 4, MFConfig(learning_rate=1.5, batch_size=64)),
    "ml-100k": FactorSettings(32, 8, 4.0, 60, 60, 5, MFConfig(learning_rate=1.0, batch_size=32, weight_decay=5e-3)),
    "ml-1m": FactorSettings(64, 4, 4.0, 300, 60, 20, MFConfig(batch_size=32, weight_decay=5e-3)),
}
"""Rates, ranks and rounds were chosen for the first minutes: on seeds 1 and 2 of synthetic data, and on each user's
second-last item of ml-100k (0.59 after 60 rounds, popularity 0.44). Recipes have their own recommended values."""


def chosen_settings(request: DemoRequest) -> FactorSettings:
    """Return the settings of the data set, with the user's choices. Raises `ParameterError` if the rank exceeds dim."""
    settings = _SETTINGS.get(request.dataset, _SETTINGS["ml-100k"])
    rank = request.rank or settings.rank
    if rank > settings.dim:
        raise ParameterError(f"rank {rank} is greater than the dimension {settings.dim} of the {request.dataset} demo")
    return replace(
        settings, rounds=request.rounds or settings.rounds, cohort=request.cohort or settings.cohort, rank=rank
    )


def shared_setup(
    request: DemoRequest, settings: FactorSettings, report: Report | None = None
) -> tuple[SharedSetup, int]:
    """Return the data and clients that all arms share, and how many invalid published negatives were replaced.

    Without a cohort in the request it is at most all users. Raises `ParameterError` if the request's is larger.
    """
    data = _data(request, report)
    negatives, replaced = candidates_of(data, np.random.default_rng(request.seed))
    clients = data.train.active_users.size
    cohort = settings.cohort if request.cohort else min(settings.cohort, clients)
    if cohort > clients:
        raise ParameterError(f"a cohort of {cohort} is greater than the {clients} users with interactions")
    shared = SharedSetup(
        data=data,
        candidates=negatives,
        identities=demo_identities(clients, request.seed),
        settings=replace(
            settings, cohort=cohort, evaluate_every=min(settings.evaluate_every, max(1, settings.rounds // 10))
        ),
        # With dropouts every round waits for its deadline, so the deadline is near the time that a round takes.
        collect_seconds=120.0 if request.dropout == 0 else 5.0,
        dropout=request.dropout,
        seed=request.seed,
    )
    return shared, replaced


def _data(request: DemoRequest, report: Report | None) -> LeaveOneOut:
    if request.dataset in _SETTINGS:
        return load_dataset(request.dataset, request.data_dir, request.seed, request.columns, report)
    whole = load_interactions(request.dataset, request.data_dir, request.columns, report)
    return leave_one_out(sampled_users(whole, request.seed, report), request.seed)


def arms_of(request: DemoRequest, settings: FactorSettings) -> list[Arm]:
    """Return the arms: the recipe over sums that hide contributions, the same in plain, and full FedMF over the former.

    All count items first. Raises `ParameterError` for a mechanism other than ckks and oneshot.
    """
    hidden = request.mechanism or "ckks"
    if hidden not in ("ckks", "oneshot"):
        raise ParameterError(f"this demo runs ckks or oneshot, not {hidden!r}: that is for --recipe privirec-k")
    how = "encrypted" if hidden == "ckks" else "one-shot"
    shape = {"dim": settings.dim, "clip": settings.clip}
    low = parameters_for("colr", {**shape, "rank": settings.rank})
    full = parameters_for("fedmf", shape)
    parameters = {"set": request.parameter_set} if hidden == "ckks" else {}
    return [
        Arm(f"CoLR-{settings.rank} {how}", "colr", low, hidden, parameters),
        Arm(f"CoLR-{settings.rank} plain", "colr", low, "plain", {}),
        Arm(f"FedMF {how}", "fedmf", full, hidden, parameters),
    ]


class FactorDemo:
    """CoLR over sums that hide contributions, the same in plain, FedMF, and popularity.

    report: called with what was found in a file. Raises `ParameterError` for settings that do not fit and `DataError`
    for an unknown data set or missing files.
    """

    def __init__(self, request: DemoRequest, report: Report | None = None) -> None:
        settings = chosen_settings(request)
        self.request = request
        self.shared, self._replaced = shared_setup(request, settings, report)
        self.arms = arms_of(request, settings)

    def announcement(self) -> str:
        """Return what the demo is about to do."""
        oneshot = self.request.mechanism == "oneshot"
        hidden = "masked; a committee of 5 unmasks the sums only" if oneshot else "CKKS ciphertexts"
        return f"Training on [bold]{self.request.dataset}[/]; contributions are {hidden}."

    def run(self, server: DemoServer, console: Console) -> DemoResult:
        """Train in every arm."""
        shared, arms = self.shared, self.arms
        with Display(console, {arm.name: shared.settings.rounds for arm in arms}) as display:
            done = [run_arm(arm, shared, server, display) for arm in arms]
        popularity = of_leave_one_out(popularity_control(shared.data, shared.candidates))
        control = ArmResult("popularity", popularity, note="the same list for every user; no training")
        train, (_, task) = shared.data.train, done[0]
        protocol = (
            "leave-one-out against 99 negatives, training negatives drawn from all items outside the training items"
        )
        if self._replaced:
            protocol += f", {self._replaced} invalid negatives of the published file replaced"
        return DemoResult(
            dataset=self.request.dataset,
            users=train.n_users,
            items=train.n_items,
            interactions=int(train.items.size) + int((shared.data.test_items >= 0).sum()),
            recipe=self.request.recipe,
            mechanism=arms[0].mechanism,
            rounds=shared.settings.rounds,
            usual_rounds=_SETTINGS.get(self.request.dataset, _SETTINGS["ml-100k"]).rounds,
            cohort=shared.settings.cohort,
            plan=task.plan,
            arms=[*(result for result, _ in done), control],
            evaluation=protocol,
            next=Advised(recipe="privirec-k"),
            warnings=task.warnings,
        )
