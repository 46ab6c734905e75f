"""One round of recipe `arrays` through a real server over HTTP: what it costs clients and server, and its error.

The clients are those of the SDK, in this process, each with its own keys, masks and requests.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure
from bench._server import OPERATOR_TOKEN, Server, Watch
from client_sdk import Policy
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.rounds.join import ClientOptions
from client_sdk.training.arrays import ArraysRound
from protocols.messages import Schedule
from protocols.recipes.arrays import Arrays
from protocols.recipes.base import ModelState
from protocols.sums.base import SumPlan
from protocols.sums.oneshot.plan import OneshotPlan

__all__ = ["MAX_WEIGHT", "DrawnUpdates", "OwnModelRound", "Played", "parameters_of", "play", "shapes_of"]


# --- The models of the bench, the changes that its clients send, and the mean that must come out

CLIP = 0.1
MAX_WEIGHT = 100


def shapes_of(values: int) -> dict[str, list[int]]:
    """Return named shapes with `values` values in all: two embedding tables, a layer and its bias.

    values: a multiple of 1,000.
    """
    rows = values // 1000
    return {
        "items.weight": [10 * rows, 64],
        "users.weight": [5 * rows, 64],
        "head.weight": [39 * rows, 1],
        "head.bias": [rows],
    }


def parameters_of(values: int) -> dict[str, Any]:
    """Return the parameters of recipe `arrays` for such a model: weighted, server optimiser `mean`."""
    shapes = shapes_of(values)
    assert sum(map(prod, shapes.values())) == values
    return {"shapes": shapes, "clip": CLIP, "max_weight": MAX_WEIGHT, "reveal_weights": True}


@dataclass
class DrawnUpdates:
    """Trainers that send drawn changes of every array, and the sum of what they sent, which the bench knows.

    weight: the sum of the weights so far. cpu_seconds: what drawing and adding took, which is not a client's work.
    """

    values: int
    weight: float = 0.0
    cpu_seconds: float = 0.0
    _total: NDArray[np.float64] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def trainer(self, number: int) -> Any:
        """Return the trainer of client `number`."""

        def train(round_: ArraysRound) -> None:
            started = time.thread_time()
            update, weight = self._drawn(number)
            spent = time.thread_time() - started
            round_.contribute(update, weight)
            with self._lock:
                started = time.thread_time()
                self._add(update, weight)
                self.cpu_seconds += spent + time.thread_time() - started

        return train

    def _drawn(self, number: int) -> tuple[dict[str, NDArray[np.float32]], float]:
        rng, update = np.random.default_rng([1, number]), {}
        for name, shape in shapes_of(self.values).items():
            drawn = rng.random(prod(shape), np.float32)
            drawn -= np.float32(0.5)
            drawn *= np.float32(2 * CLIP)
            update[name] = drawn.reshape(shape)
        return update, float(rng.integers(1, MAX_WEIGHT + 1))

    def _add(self, update: dict[str, NDArray[np.float32]], weight: float) -> None:
        self.weight += weight
        if self._total is None:
            self._total = np.zeros(self.values)
        start = 0
        for name in sorted(update):
            array = update[name].ravel()
            self._total[start : start + array.size] += np.multiply(array, weight, dtype=np.float64)
            start += array.size

    def largest_error(self, recipe: Arrays, before: ModelState, after: ModelState) -> float:
        """Return the largest difference between the model's change and the weighted mean of what was sent."""
        if self._total is None:
            raise ValueError("the sum of the changes is not known")
        old, new, start, largest = recipe.arrays(before), recipe.arrays(after), 0, 0.0
        for name in sorted(new):
            moved = new[name].ravel().astype(np.float64) - old[name].ravel()
            mean = self._total[start : start + moved.size] / self.weight
            largest = max(largest, float(np.abs(moved - mean).max()))
            start += moved.size
        return largest


# ---

SMALL, FEW = 1_000, 5
"""Values and clients of the round before: the server has then loaded its code, and started its worker."""
FLOAT32 = 2.0**-24
_WHOLE = 1 << 30
"""Longest contribution that is uploaded in one request, bytes."""
_MIB = 2**20


@dataclass(frozen=True)
class OwnModelRound:
    """What is played.

    dropouts: clients that drop out before they contribute. workers: clients at the same time. wait: seconds for which
    the server waits for clients that drop out, at most. std: standard deviation of the initial values.
    """

    mechanism: str
    values: int
    clients: int
    dropouts: int = 0
    workers: int = 2
    wait: float = 30.0
    std: float = 0.02


@dataclass(frozen=True)
class Played:
    """A round that is over. idle: resident bytes of the server before it. error, bound: of a value of the mean.

    client_cpu_seconds: of one client, without its training and the committee.
    """

    round: FleetRound
    plan: SumPlan
    watch: Watch
    idle: int
    error: float
    bound: float
    wall_seconds: float
    client_cpu_seconds: float

    def figures(self, name: str, values: int) -> dict[str, Figure]:
        """Return the figures of the round, with keys `<name>.*`. values: of the model, 4 bytes each."""
        reports = self.round.reports
        return {
            f"{name}.clients": self.round.asked,
            f"{name}.survivors": self.round.survivors,
            f"{name}.client_cpu_s": self.client_cpu_seconds,
            f"{name}.client_seal_s": median(report.seal_seconds for report in reports),
            f"{name}.client_upload_s": median(report.upload_seconds for report in reports),
            f"{name}.bytes_up_per_client": self.round.bytes_up / len(reports),
            f"{name}.contribution_bytes": reports[0].contribution_bytes,
            f"{name}.wall_s": self.wall_seconds,
            f"{name}.server_cpu_s": self.watch.cpu_seconds,
            f"{name}.peak_rss_mib": self.watch.total / _MIB,
            f"{name}.idle_rss_mib": self.idle / _MIB,
            f"{name}.vectors": (self.watch.total - self.idle) / (4 * values),
            f"{name}.error_of_bound": self.error / self.bound,
        }


def play(asked: OwnModelRound) -> Played:
    """Play one round through a fresh server, after one of a small model; `SystemExit` if it failed."""
    with tempfile.TemporaryDirectory() as root, Server(Path(root)) as server:
        with _started(server, OwnModelRound(asked.mechanism, SMALL, FEW), DrawnUpdates(SMALL)) as (fleet, _):
            _complete(fleet)
        with Watch(server.pid) as idle:
            time.sleep(0.5)
        updates = DrawnUpdates(asked.values)
        with _started(server, asked, updates) as (fleet, operator), Watch(server.pid) as watch:
            committee, spent, started = _CommitteeTime(fleet), time.process_time(), time.monotonic()
            with _deadline_kept(operator, fleet, asked):
                played = _complete(fleet)
            wall = time.monotonic() - started
            spent = time.process_time() - spent - committee.seconds - updates.cpu_seconds
            error, bound = _error_and_bound(fleet, updates)
        plan = fleet.clients[0].member.terms.sum_plan
        return Played(played, plan, watch, idle.total, error, bound, wall, spent / asked.clients)


def _complete(fleet: Fleet) -> FleetRound:
    (played,) = fleet.run(rounds=1)
    if played.state != "complete":
        missed = {each.reason for each in played.missed}
        raise SystemExit(f"the round failed: {played.failure}; clients: {missed}")
    return played


@contextmanager
def _started(server: Server, asked: OwnModelRound, updates: DrawnUpdates) -> Iterator[tuple[Fleet, Operator]]:
    """Create a task of one round whose cohort is all clients, and enrol them."""
    clients, organiser = asked.clients, TrialOrganiser()
    schedule = Schedule(
        rounds=1,
        cohort_size=clients,
        min_clients=clients - asked.dropouts,
        collect_seconds=asked.wait if asked.dropouts else 3_600.0,
        stage_seconds=3_600.0,
    )
    pin = None if asked.mechanism == "plain" else organiser.pin
    request = task_request(
        f"{asked.mechanism}-{clients}-{asked.values}",
        "arrays",
        asked.mechanism,
        schedule,
        {**parameters_of(asked.values), "std": asked.std},
        organiser=pin,
    )
    options = FleetOptions(
        policy=Policy(mechanisms=frozenset({asked.mechanism}), max_model_bytes=1 << 34),
        downloads="once",
        client=ClientOptions(chunk_bytes=_WHOLE),
        workers=asked.workers,
        dropout=asked.dropouts / clients,
        dropout_rng=_First(asked.dropouts),
    )
    with (
        Operator(server.url, OPERATOR_TOKEN) as operator,
        Fleet(server.url, [updates.trainer(number) for number in range(clients)], options) as fleet,
    ):
        task = operator.create_task(request)
        certificates = None if pin is None else organiser.source
        fleet.enrol(operator.invite(task.task_id, uses=clients).invitation, certificates=certificates)
        plan = fleet.clients[0].member.terms.sum_plan
        if isinstance(plan, OneshotPlan):
            invitation = operator.invite(task.task_id, plan.committee, "committee").invitation
            fleet.enrol_committee(invitation, certificates)
        yield fleet, operator


class _First(np.random.Generator):
    """Lets exactly the first clients of the cohort drop out."""

    def __init__(self, count: int) -> None:
        super().__init__(np.random.PCG64(0))
        self._count = count

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        """Return 0 for the first clients and 1 for the others."""
        return (np.arange(size) >= self._count).astype(np.float64)


class _CommitteeTime:
    """Counts the processor seconds of the fleet's committee."""

    def __init__(self, fleet: Fleet) -> None:
        self._attend, self.seconds = fleet._committee.attend, 0.0
        fleet._committee.attend = self._counted  # type: ignore[method-assign]

    def _counted(self) -> None:
        started = time.process_time()
        self._attend()
        self.seconds += time.process_time() - started


@contextmanager
def _deadline_kept(operator: Operator, fleet: Fleet, asked: OwnModelRound) -> Iterator[None]:
    """Extend the deadline for contributions until all that are sent have arrived; without dropouts there is no need."""
    over, task_id, wanted = threading.Event(), fleet.clients[0].member.terms.task_id, asked.clients - asked.dropouts

    def keep() -> None:
        while not over.wait(1.0):
            for seen in operator.rounds(task_id):
                waits = seen.state == "collecting" and seen.received < wanted
                if waits and seen.seconds_left is not None and seen.seconds_left < 0.7 * asked.wait:
                    operator.extend_round(task_id, seen.number, 0.3 * asked.wait)

    thread = threading.Thread(target=keep, daemon=True)
    if asked.dropouts:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if asked.dropouts:
            thread.join()


def _error_and_bound(fleet: Fleet, updates: DrawnUpdates) -> tuple[float, float]:
    """Return the largest error of a value of the mean, and what the plan predicts (docs/own-model.md, Precision)."""
    terms = fleet.clients[0].member.terms
    recipe, plan = terms.recipe, terms.sum_plan
    assert isinstance(recipe, Arrays)
    before, after = recipe.initial_state(terms.seed), fleet.model()
    weight, clip = updates.weight / MAX_WEIGHT, recipe.parameters.clip
    largest = max(float(np.abs(array).max()) for array in recipe.arrays(after).values())
    bound = (1.0 + clip) * plan.predicted_error / (weight - plan.predicted_error) + FLOAT32 * largest
    return updates.largest_error(recipe, before, after), bound
