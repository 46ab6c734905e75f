"""One round of recipe `arrays` through a real server over HTTP: what it costs clients and server, and its error."""

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

from bench._report import MIB, Figure, Watch
from bench.fleet_round import READY_SECONDS, Committee, enrolled, one_round
from client_sdk import Policy
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.operator import Operator
from client_sdk.rounds.join import ClientOptions
from client_sdk.training.arrays import ArraysRound
from protocols.messages import Schedule
from protocols.recipes.arrays import Arrays
from protocols.recipes.base import ModelState

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
    return {"shapes": shapes_of(values), "clip": CLIP, "max_weight": MAX_WEIGHT, "reveal_weights": True}


@dataclass
class DrawnUpdates:
    """Trainers that send drawn changes of every array, and the sum of what they sent, which the bench knows.

    weight: the sum of the weights so far. cpu_seconds: what drawing and adding took, which is not a client's work.
    """

    values: int
    weight: float = 0.0
    cpu_seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._total = np.zeros(self.values)

    def trainer(self, number: int) -> Any:
        """Return the trainer of client `number`."""

        def train(round_: ArraysRound) -> None:
            started = time.thread_time()
            update, weight = self._drawn(number)
            spent = time.thread_time() - started
            round_.contribute(update, weight)
            with self._lock:
                started = time.thread_time()
                self.weight += weight
                for place, array in _placed(update):
                    self._total[place] += np.multiply(array, weight, dtype=np.float64)
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

    def largest_error(self, recipe: Arrays, before: ModelState, after: ModelState) -> float:
        """Return the largest difference between the model's change and the weighted mean of what was sent."""
        old, largest = recipe.arrays(before), 0.0
        for (place, new), name in zip(_placed(recipe.arrays(after)), sorted(old), strict=True):
            moved = new.astype(np.float64) - old[name].ravel()
            largest = max(largest, float(np.abs(moved - self._total[place] / self.weight).max()))
        return largest


def _placed(arrays: dict[str, NDArray[np.float32]]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """The arrays in the order of their names, flat, with their places in one vector."""
    start = 0
    for name in sorted(arrays):
        flat = arrays[name].ravel()
        yield slice(start, start + flat.size), flat
        start += flat.size


# ---

SMALL, FEW = 1_000, 5
"""Values and clients of the round before: the server has then loaded its code, and started its worker."""
FLOAT32 = 2.0**-24


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
    watch: Watch
    idle: int
    error: float
    bound: float
    wall_seconds: float
    client_cpu_seconds: float

    def figures(self, name: str, values: int) -> dict[str, Figure]:
        """Return the figures of the round, with keys `<name>.*`. values: of the model, 4 bytes each."""
        reports = self.round.reports
        found = {
            "clients": self.round.asked,
            "survivors": self.round.survivors,
            "client_cpu_s": self.client_cpu_seconds,
            "client_seal_s": median(report.seal_seconds for report in reports),
            "client_upload_s": median(report.upload_seconds for report in reports),
            "bytes_up_per_client": self.round.bytes_up / len(reports),
            "contribution_bytes": reports[0].contribution_bytes,
            "wall_s": self.wall_seconds,
            "server_cpu_s": self.watch.cpu_seconds,
            "peak_rss_mib": self.watch.total / MIB,
            "idle_rss_mib": self.idle / MIB,
            "vectors": (self.watch.total - self.idle) / (4 * values),
            "error_of_bound": self.error / self.bound,
        }
        return {f"{name}.{key}": value for key, value in found.items()}


def play(asked: OwnModelRound) -> Played:
    """Play one round through a fresh server, after one of a small model; `SystemExit` if it failed."""
    with tempfile.TemporaryDirectory() as root, run_server(Path(root), READY_SECONDS) as server:
        with _started(server, OwnModelRound(asked.mechanism, SMALL, FEW), DrawnUpdates(SMALL)) as (fleet, _):
            one_round(fleet)
        with Watch(server.pid) as idle:
            time.sleep(0.5)
        updates = DrawnUpdates(asked.values)
        with _started(server, asked, updates) as (fleet, operator), Watch(server.pid) as watch:
            committee, spent, started = Committee(fleet), time.process_time(), time.monotonic()
            with _deadline_kept(operator, fleet, asked):
                played = one_round(fleet)
            wall = time.monotonic() - started
            spent = time.process_time() - spent - committee.seconds - updates.cpu_seconds
            error, bound = _error_and_bound(fleet, updates)
        return Played(played, watch, idle.total, error, bound, wall, spent / asked.clients)


@contextmanager
def _started(server: DemoServer, asked: OwnModelRound, updates: DrawnUpdates) -> Iterator[tuple[Fleet, Operator]]:
    """Create a task of one round whose cohort is all clients, and enrol them."""
    clients = asked.clients
    schedule = Schedule(
        rounds=1,
        cohort_size=clients,
        min_clients=clients - asked.dropouts,
        collect_seconds=asked.wait if asked.dropouts else 3_600.0,
        stage_seconds=3_600.0,
    )
    options = FleetOptions(
        policy=Policy(mechanisms=frozenset({asked.mechanism}), max_model_bytes=1 << 34),
        downloads="once",
        client=ClientOptions(chunk_bytes=1 << 30),  # a contribution in one request
        workers=asked.workers,
        dropout=asked.dropouts / clients,
        dropout_rng=_First(asked.dropouts),
    )
    parameters = {**parameters_of(asked.values), "std": asked.std}
    trainers = [updates.trainer(number) for number in range(clients)]
    with enrolled(server, "arrays", parameters, asked.mechanism, schedule, trainers, options) as found:
        yield found


class _First(np.random.Generator):
    """Lets exactly the first clients of the cohort drop out."""

    def __init__(self, count: int) -> None:
        super().__init__(np.random.PCG64(0))
        self._count = count

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        """Return 0 for the first clients and 1 for the others."""
        return (np.arange(size) >= self._count).astype(np.float64)


@contextmanager
def _deadline_kept(operator: Operator, fleet: Fleet, asked: OwnModelRound) -> Iterator[None]:
    """Extend the deadline for contributions until all that are sent have arrived; without dropouts there is no need."""
    over, task_id, wanted = threading.Event(), fleet.clients[0].member.terms.task_id, asked.clients - asked.dropouts

    def keep() -> None:
        while asked.dropouts and not over.wait(1.0):
            for seen in operator.rounds(task_id):
                waits = seen.state == "collecting" and seen.received < wanted
                if waits and seen.seconds_left is not None and seen.seconds_left < 0.7 * asked.wait:
                    operator.extend_round(task_id, seen.number, 0.3 * asked.wait)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
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
