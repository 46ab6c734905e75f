"""The demo's arms: each trains the same recommender another way, through the same server, with the same draws.

Identities, task seed and training seeds are shared by all arms, so that cohorts, negatives and first factors are the
same; what differs between an encrypted arm and its plain twin is the sum alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.policy import Policy
from client_sdk.data.interactions import LeaveOneOut
from client_sdk.demo.results import ArmResult, CurvePoint
from client_sdk.demo.server import DemoServer
from client_sdk.evaluation.leave_one_out import EvaluationResult, evaluate_scores
from client_sdk.local_state.identity import Identity
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.simulation.fleet import Fleet
from client_sdk.simulation.fleet_options import FleetOptions
from client_sdk.simulation.fleet_rounds import FleetRound
from client_sdk.training.mf import MFConfig
from protocols.crypto.domain import derive_seed
from protocols.messages import Schedule, TaskView

__all__ = ["Arm", "Federation", "Tick", "run_arm"]

_POLICY: Final = Policy(mechanisms=frozenset({"ckks", "plain"}), snapshot_every=1)
"""Plain sums are allowed, for comparison; and a fresh snapshot each round keeps catching up short: most clients of a
demo were last asked many rounds ago."""


@dataclass(frozen=True)
class Arm:
    """One way of training."""

    name: str
    recipe: str
    recipe_parameters: dict[str, Any]
    mechanism: str
    mechanism_parameters: dict[str, Any]


@dataclass(frozen=True)
class Federation:
    """What every arm shares: the data, who the clients are, how they train, and the schedule."""

    data: LeaveOneOut
    candidates: NDArray[np.int32]
    identities: Sequence[Identity]
    training: MFConfig
    rounds: int
    cohort: int
    collect_seconds: float
    dropout: float
    seed: int
    evaluate_every: int
    workers: int = 2
    organiser: TrialOrganiser = field(default_factory=TrialOrganiser)

    @property
    def trainable(self) -> NDArray[np.intp]:
        """Users with something to train on: the fleet's clients, in this order."""
        return np.flatnonzero(np.diff(self.data.train.indptr) > 0)


@dataclass(frozen=True)
class Tick:
    """A round that is over, for the live display; `point` is the newest measurement, `traffic` bytes so far."""

    arm: Arm
    stage: str
    report: FleetRound | None = None
    point: CurvePoint | None = None
    survivors: int = 0
    traffic: tuple[int, int] = (0, 0)


def run_arm(
    arm: Arm,
    shared: Federation,
    server: DemoServer,
    tell: Callable[[Tick], None],
    inspect: Callable[[Fleet], None] | None = None,
) -> tuple[ArmResult, TaskView]:
    """Create the task, enrol the fleet over HTTP, give keys where the sum needs them, and train to the end.

    `inspect` sees the fleet, keys and all, before it is closed.
    """
    users = shared.trainable
    with Operator(server.url, server.operator_token) as operator:
        task = operator.create_task(_request(arm, shared))
        keyed = arm.mechanism != "plain"
        members = operator.invite(task.task_id, users.size).invitation
        holder = operator.invite(task.task_id, 1, "holder").invitation if keyed else None
        with Fleet(
            server.url,
            [shared.data.train.positives(int(user)) for user in users],
            FleetOptions(
                training=shared.training,
                policy=_POLICY,
                seed=shared.seed,
                workers=shared.workers,
                dropout=shared.dropout,
                dropout_rng=np.random.default_rng(shared.seed),
                identities=shared.identities,
            ),
        ) as fleet:
            tell(Tick(arm, f"enrolling {users.size} clients"))

            def staged(stage: str) -> Callable[[int], None]:
                return lambda done: tell(Tick(arm, f"{stage} {done} of {users.size} clients"))

            fleet.enrol(members, holder, shared.organiser.source if keyed else None, staged("enrolling"))
            if keyed:
                fleet.give_keys(staged("sealing the keys to"))
            result = _train(arm, shared, fleet, users, tell)
            if inspect:
                inspect(fleet)
        return result, operator.task(task.task_id)


def _request(arm: Arm, shared: Federation) -> Any:
    schedule = Schedule(
        rounds=shared.rounds,
        cohort_size=shared.cohort,
        min_clients=max(3, shared.cohort // 4),
        start_clients=shared.trainable.size,
        sampling="round-robin",
        collect_seconds=shared.collect_seconds,
    )
    parameters = {"items": shared.data.train.n_items, **arm.recipe_parameters}
    seed = derive_seed(str(shared.seed).encode(), "demo task")
    name = arm.name.lower().replace(" ", "-").replace(",", "")
    organiser = shared.organiser.pin if arm.mechanism != "plain" else None
    return task_request(
        name, arm.recipe, arm.mechanism, schedule, parameters, arm.mechanism_parameters, seed, organiser=organiser
    )


def leave_one_out(shared: Federation, users: NDArray[np.intp], scores: NDArray[np.float32]) -> EvaluationResult:
    """Held-out items among the sampled negatives, by `scores` (users, items)."""
    row_of = np.zeros(shared.data.train.n_users, dtype=np.intp)
    row_of[users] = np.arange(users.size)

    def scorer(asked: NDArray[np.intp], items: NDArray[np.int32]) -> NDArray[np.floating]:
        return np.take_along_axis(scores[row_of[asked]], items, axis=1)

    return evaluate_scores(scorer, shared.data, shared.candidates, k=10, users=users)


def _train(
    arm: Arm, shared: Federation, fleet: Fleet, users: NDArray[np.intp], tell: Callable[[Tick], None]
) -> ArmResult:
    curve: list[CurvePoint] = []
    started, measuring = perf_counter(), 0.0

    def measured(number: int) -> CurvePoint:
        nonlocal measuring
        begun = perf_counter()
        found = leave_one_out(shared, users, np.stack(list(fleet.scores())))
        measuring += perf_counter() - begun
        return CurvePoint(number, found.hr, found.ndcg, perf_counter() - started - measuring)

    def on_round(report: FleetRound) -> None:
        if report.number % shared.evaluate_every == 0 or report.number >= shared.rounds:
            curve.append(measured(report.number))
        newest = curve[-1] if curve else None
        tell(Tick(arm, "training", report, newest, report.survivors, fleet.traffic()))

    rounds = fleet.run(on_round)
    if not curve or curve[-1].round_number != rounds[-1].number:
        curve.append(measured(rounds[-1].number))
    return _summary(arm, rounds, curve, perf_counter() - started - measuring)


def _summary(arm: Arm, rounds: Sequence[FleetRound], curve: Sequence[CurvePoint], seconds: float) -> ArmResult:
    parts = max(1, sum(len(r.reports) for r in rounds))
    phases = {
        name: 1000 * sum(r.phases[name] for r in rounds) / parts for name in ("catch_up", "train", "seal", "upload")
    }
    return ArmResult(
        name=arm.name,
        hr=curve[-1].hr,
        ndcg=curve[-1].ndcg,
        bytes_up=sum(r.bytes_up for r in rounds) / parts,
        bytes_down=sum(r.bytes_down for r in rounds) / parts,
        seconds=seconds,
        clipped=sum(r.clipped for r in rounds),
        dropouts=sum(len(r.missed) for r in rounds),
        curve=tuple(curve),
        phases=phases,
    )
