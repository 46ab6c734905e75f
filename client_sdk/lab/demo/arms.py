"""The demo of CoLR: several arms train the same recommender in a different way, through the same server.

The arms are CoLR over sums that hide contributions, the same in plain, and FedMF; popularity is their control.

All arms share identities, task seed and training seeds, so they have the same cohorts, negatives and initial factors.
An encrypted arm and its plain counterpart differ only in how the sum is computed. Runs with the same seed have the same
cohorts too, although every run makes new keys: `demo_identities` gives each user the key of its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from client_sdk.agreement.policy import Policy
from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import Report, load_interactions
from client_sdk.lab.data.splits import load_split
from client_sdk.lab.demo import (
    ArmPoint,
    ArmResult,
    DemoRequest,
    DemoResult,
    of_leave_one_out,
    sampled_users,
)
from client_sdk.lab.demo.report import Display
from client_sdk.lab.enrolled import enrolled_fleet
from client_sdk.lab.evaluation.controls import popularity_control
from client_sdk.lab.evaluation.metrics import EvaluationResult, candidates_of, evaluate_scores
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import DemoServer
from client_sdk.lab.measures import Advised, Measured
from client_sdk.operator import task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.store.identity import Identity
from client_sdk.training.mf import MFConfig
from protocols.advice import parameters_for
from protocols.crypto.keys import derive_seed, repeatable_place
from protocols.errors import ParameterError
from protocols.messages import Schedule, TaskView
from protocols.sums.registry import mechanism_entry, mechanisms, resolved_parameters

_POLICY: Final = Policy(mechanisms=frozenset(mechanisms()), trust_models=True, snapshot_every=1)
"""Allows plain sums, for comparison. A snapshot in every round keeps downloads short: most clients of a demo were last
in a cohort many rounds ago."""


@dataclass(frozen=True)
class Arm:
    """One way of training: recipe and mechanism with their parameters."""

    name: str
    """Label in tables and plots."""
    recipe: str
    recipe_parameters: dict[str, Any]
    mechanism: str
    mechanism_parameters: dict[str, Any]


@dataclass(frozen=True)
class FactorSettings:
    """Settings for one data set."""

    dim: int
    """Length of an item's factor."""
    rank: int
    """Rank of the update."""
    clip: float
    """Bound of each value of an update."""
    rounds: int
    """Rounds of each arm."""
    cohort: int
    """Clients in each round."""
    evaluate_every: int
    """Rounds between two measurements."""
    training: MFConfig


@dataclass(frozen=True)
class SharedSetup:
    """What all arms share: data, clients, training and schedule."""

    data: LeaveOneOut
    candidates: NDArray[np.int32]
    """int32 (users, 99), the negatives against which the held-out items are ranked."""
    identities: Sequence[Identity]
    """One for each user with training interactions."""
    settings: FactorSettings
    collect_seconds: float
    """Deadline of a round."""
    dropout: float
    """Share of a cohort that does not contribute."""
    seed: int
    workers: int = 6
    """Threads of the fleet; the server commits what several clients send at once in one transaction, so with 6 it needs
    a quarter less processor time than with 2."""
    organiser: TrialOrganiser = field(default_factory=TrialOrganiser)


def run_arm(
    arm: Arm,
    shared: SharedSetup,
    server: DemoServer,
    display: Display,
    inspect: Callable[[Fleet], None] | None = None,
) -> tuple[ArmResult, TaskView]:
    """Create a task, enrol the fleet over HTTP, hand out keys if the sum needs them, and train until the task ends.

    display: shows how clients enrol, and every round. inspect: called with the fleet before it is closed.
    Returns the measurements and the task's final view.
    """
    users = shared.data.train.active_users  # the clients, in this order
    options = FleetOptions(
        training=shared.settings.training,
        policy=_POLICY,
        seed=shared.seed,
        workers=shared.workers,
        dropout=shared.dropout,
        dropout_rng=np.random.default_rng(shared.seed),
        identities=shared.identities,
    )
    started, rows = perf_counter(), [shared.data.train.positives(int(user)) for user in users]
    organiser = shared.organiser if mechanism_entry(arm.mechanism).hides else None
    given = server, _request(arm, shared), rows, options, organiser, partial(display.stage, arm.name)
    with enrolled_fleet(*given, asks_operator=True) as (operator, fleet, task):
        enrolled = perf_counter()
        result = replace(_train(arm, shared, fleet, users, display), enrol_seconds=enrolled - started)
        if inspect:
            inspect(fleet)
        return result, operator.task(task.task_id)


def task_seed(seed: int) -> bytes:
    """Return the seed of the tasks of all arms, 32 bytes, from the demo's own."""
    return derive_seed(str(seed).encode(), "demo task")


def demo_identities(count: int, seed: int) -> list[Identity]:
    """Return new identities, one per user, in whose round-robin order the users' order is the same in every run.

    The server orders clients by their keys, and keys are random: so the keys are handed out by their places.
    """
    tasks = task_seed(seed)
    made = sorted((Identity.generate() for _ in range(count)), key=lambda one: repeatable_place(tasks, one.public_key))
    order = np.random.default_rng([seed, 0x0DE7]).permutation(count)
    return [made[place] for place in order]


def _request(arm: Arm, shared: SharedSetup) -> Any:
    schedule = Schedule(
        rounds=shared.settings.rounds,
        cohort_size=shared.settings.cohort,
        min_clients=max(3, shared.settings.cohort // 4),
        start_clients=shared.data.train.active_users.size,
        sampling="round-robin",
        collect_seconds=shared.collect_seconds,
    )
    parameters = {"items": shared.data.train.n_items, **arm.recipe_parameters}
    seed = task_seed(shared.seed)
    name = arm.name.lower().replace(" ", "-").replace(",", "")
    organiser = shared.organiser.pin if mechanism_entry(arm.mechanism).hides else None
    return task_request(
        name, arm.recipe, arm.mechanism, schedule, parameters, arm.mechanism_parameters, seed, organiser=organiser
    )


def evaluate_held_out(shared: SharedSetup, users: NDArray[np.intp], scores: NDArray[np.float32]) -> EvaluationResult:
    """Evaluate `scores`, float32 (users, items), by ranking held-out items against the shared negatives (HR@10)."""
    row_of = np.zeros(shared.data.train.n_users, dtype=np.intp)
    row_of[users] = np.arange(users.size)

    def score_items(asked: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        return np.take_along_axis(scores[row_of[asked]], items, axis=1)

    return evaluate_scores(score_items, shared.data, shared.candidates, k=10, users=users)


def _train(arm: Arm, shared: SharedSetup, fleet: Fleet, users: NDArray[np.intp], display: Display) -> ArmResult:
    curve: list[ArmPoint] = []
    newest: Measured | None = None
    started, measuring = perf_counter(), 0.0

    def measure(number: int) -> ArmPoint:
        nonlocal measuring, newest
        begun = perf_counter()
        found = evaluate_held_out(shared, users, np.stack(list(fleet.scores())))
        measuring += perf_counter() - begun
        newest = of_leave_one_out(found)
        return ArmPoint(number, newest.values, perf_counter() - started - measuring)

    def on_round(report: FleetRound) -> None:
        if report.number % shared.settings.evaluate_every == 0 or report.number >= shared.settings.rounds:
            curve.append(measure(report.number))
        up, down = (f"{amount / 2**20:.1f}" for amount in fleet.traffic())
        quality = f"HR@10 {curve[-1].values['HR@10']:.3f}" if curve else "HR@10 ..."
        facts = f"{quality} {report.survivors}/{shared.settings.cohort} clients, MiB {up} up {down} down"
        display.round(arm.name, report, facts)

    rounds = fleet.run(on_round)
    if not curve or curve[-1].round_number != rounds[-1].number:
        curve.append(measure(rounds[-1].number))
    assert newest is not None  # noqa: S101 - measured above
    seconds = perf_counter() - started - measuring
    made = with_costs(ArmResult(arm.name, newest, seconds=seconds, curve=tuple(curve)), rounds)
    parts = max(1, made.contributions)
    phases = {name: 1000 * sum(report.phases[name] for report in rounds) / parts for name in rounds[0].phases}
    return replace(made, phases=phases)


def with_costs(arm: ArmResult, rounds: Sequence[FleetRound]) -> ArmResult:
    """Return the arm with the costs of its rounds: mean bytes of a client in one, and what was clipped or missing."""
    contributions = sum(len(report.reports) for report in rounds)
    parts = max(1, contributions)
    return replace(
        arm,
        bytes_up=sum(report.bytes_up for report in rounds) / parts,
        bytes_down=sum(report.bytes_down for report in rounds) / parts,
        clipped=sum(report.clipped for report in rounds),
        dropouts=sum(len(report.missed) for report in rounds),
        contributions=contributions,
    )


# --- the settings of each data set, with the user's choices, and the arms in their order ------------------------------

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
        split = load_split(request.dataset, request.data_dir, kind="leave-one-out", seed=request.seed, report=report)
        assert split.one_each is not None  # noqa: S101 - by its kind
        return split.one_each
    whole = load_interactions(request.dataset, request.data_dir, request.columns, report, request.skip_bad)
    return leave_one_out(sampled_users(whole, request.seed, report), request.seed)


_HIDDEN_BY: Final = {"ckks": "encrypted", "oneshot": "one-shot"}
"""What an arm is called, by the mechanisms with which this demo runs."""


def arms_of(request: DemoRequest, settings: FactorSettings) -> list[Arm]:
    """Return the arms: the recipe over sums that hide contributions, the same in plain, and full FedMF over the former.

    All count items first. Raises `ParameterError` for a mechanism other than ckks and oneshot.
    """
    hidden = request.mechanism or "ckks"
    if hidden not in _HIDDEN_BY:
        known = " or ".join(_HIDDEN_BY)
        raise ParameterError(f"this demo runs {known}, not {hidden!r}: that is for --recipe privirec-k")
    hidden_by = _HIDDEN_BY[hidden]
    shape = {"dim": settings.dim, "clip": settings.clip}
    low = parameters_for("colr", {**shape, "rank": settings.rank})
    full = parameters_for("fedmf", shape)
    parameters = {"set": request.parameter_set} if "set" in resolved_parameters(hidden, {}) else {}
    return [
        Arm(f"CoLR-{settings.rank} {hidden_by}", "colr", low, hidden, parameters),
        Arm(f"CoLR-{settings.rank} plain", "colr", low, "plain", {}),
        Arm(f"FedMF {hidden_by}", "fedmf", full, hidden, parameters),
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
        entry = mechanism_entry(self.arms[0].mechanism)
        return f"Training on [bold]{self.request.dataset}[/] with the mechanism {entry.name}: {entry.text}."

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
