"""Measure rounds of a model of one's own (recipe `arrays`) over HTTP: client, server, memory, Flower's SecAgg+ beside.

    .venv/bin/python -m bench.arrays --peer-python PEERS/bin/python [--quick] [--only flower ...] [--json FILE]

Without flwr, `flower` and `whole` are left out. With `--only`, the figures of the other parts stay in FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench._report import MIB, READY_SECONDS, Figure, Watch, arguments, ratio, say, write_figures
from bench.figures import run
from bench.peers import FlowerPeer, play_whole
from bench.rounds import Dropouts, enrolled, measure_round, named, one_round
from bench.sums import CLIP, Shape, play_round
from client_sdk import Policy
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.operator import Operator
from client_sdk.rounds.account import ClientOptions
from client_sdk.training.arrays import ArraysRound
from protocols.messages import Schedule
from protocols.recipes.arrays import Arrays
from protocols.recipes.registry import recipe
from protocols.sums.masked.plan import make_plan

# --- The models of the bench, the changes that its clients send, and the mean that must come out

MAX_WEIGHT: Final = 100


def shapes_of(values: int) -> dict[str, list[int]]:
    """Named shapes with `values` values, a multiple of 1,000: two embedding tables, a layer and its bias."""
    rows = values // 1000
    tables = {"items.weight": [10 * rows, 64], "users.weight": [5 * rows, 64]}
    return tables | {"head.weight": [39 * rows, 1], "head.bias": [rows]}


def parameters_of(values: int) -> dict[str, Any]:
    """Return the parameters of recipe `arrays` for such a model: weighted, server optimiser `mean`."""
    return {"shapes": shapes_of(values), "clip": CLIP, "max_weight": MAX_WEIGHT, "reveal_weights": True}


@dataclass
class DrawnUpdates:
    """Trainers that send drawn changes of every array, with a weight."""

    values: int
    seconds: list[float] = field(default_factory=list)
    """Processor time of each drawing, which is not a client's work."""

    def trainer(self, number: int) -> Callable[[ArraysRound], None]:

        def train(round_: ArraysRound) -> None:
            started = time.thread_time()
            update, weight = self._drawn(number)
            self.seconds.append(time.thread_time() - started)
            round_.contribute(update, weight)

        return train

    def _drawn(self, number: int) -> tuple[dict[str, NDArray[np.float32]], float]:
        rng, update = np.random.default_rng([1, number]), {}
        for name, shape in shapes_of(self.values).items():
            drawn = rng.random(prod(shape), np.float32)
            drawn -= np.float32(0.5)
            drawn *= np.float32(2 * CLIP)
            update[name] = drawn.reshape(shape)
        return update, float(rng.integers(1, MAX_WEIGHT + 1))

    def mean(self, numbers: Iterable[int]) -> tuple[NDArray[np.float64], float]:
        """Return the weighted mean of what these clients sent, float64 (values,), and the sum of their weights."""
        total, weight = np.zeros(self.values), 0.0
        for number in numbers:
            update, own = self._drawn(number)
            weight += own
            for place, array in _placed(update):
                total[place] += np.multiply(array, own, dtype=np.float64)
        total /= weight
        return total, weight


def _placed(arrays: dict[str, NDArray[np.float32]]) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """The arrays in the order of their names, flat, with their places in one vector."""
    start = 0
    for name in sorted(arrays):
        flat = arrays[name].ravel()
        yield slice(start, start + flat.size), flat
        start += flat.size


# --- One round through a real server

SMALL, FEW = 1_000, 5
"""Values and clients of the round before: the server has then loaded its code, and started its worker."""
FLOAT32 = 2.0**-24


@dataclass(frozen=True)
class OwnModelRound:
    """What is played."""

    mechanism: str
    values: int
    clients: int
    dropouts: int = 0
    """Clients that drop out before they contribute."""
    workers: int = 2
    """Clients at the same time."""
    wait: float = 30.0
    """Seconds for which the server waits for clients that drop out, at most."""
    std: float = 0.02
    """Standard deviation of the initial values."""


def play(name: str, asked: OwnModelRound) -> dict[str, Figure]:
    """Play one round through a fresh server, after one of a small model; its figures `<name>.*`.

    `SystemExit` if it failed. `client_cpu_s`: of one client, without its training and the committee. `vectors`: the
    server's peak memory over idle, in models. `error_of_bound`: largest error of a value of the mean / its bound.
    """
    with tempfile.TemporaryDirectory() as root, run_server(Path(root), READY_SECONDS) as server:
        with _started(server, OwnModelRound(asked.mechanism, SMALL, FEW), DrawnUpdates(SMALL)) as (fleet, _):
            one_round(fleet)
        with Watch(server.pid) as idle:
            time.sleep(0.5)
        updates = DrawnUpdates(asked.values)
        with _started(server, asked, updates) as (fleet, operator):
            with _deadline_kept(operator, fleet, asked):
                done = measure_round(server, fleet)
            error, bound = _error_and_bound(fleet, updates, {report.client_id for report in done.round.reports})
    more: dict[str, Figure] = {
        "clients": done.round.asked,
        "client_cpu_s": (done.client_seconds - sum(updates.seconds)) / asked.clients,
        "vectors": (done.watch.total - idle.total) / (4 * asked.values),
        "error_of_bound": error / bound,
    }
    return named(name, done.figures | more)


def _started(
    server: DemoServer, asked: OwnModelRound, updates: DrawnUpdates
) -> AbstractContextManager[tuple[Fleet, Operator]]:
    """Create a task of one round whose cohort is all clients, and enrol them."""
    clients, collect = asked.clients, asked.wait if asked.dropouts else 3_600.0
    schedule = Schedule(
        rounds=1, cohort_size=clients, min_clients=clients - asked.dropouts, collect_seconds=collect,
        stage_seconds=3_600.0,
    )  # fmt: skip
    options = FleetOptions(
        policy=Policy(mechanisms=frozenset({asked.mechanism}), trust_models=True, max_model_bytes=1 << 34),
        downloads="once",
        client=ClientOptions(chunk_bytes=1 << 30),  # a contribution in one request
        workers=asked.workers,
        dropout=0.5,
        dropout_rng=Dropouts({1: asked.dropouts}),
    )
    parameters = {**parameters_of(asked.values), "std": asked.std}
    trainers = [updates.trainer(number) for number in range(clients)]
    return enrolled(server, "arrays", parameters, asked.mechanism, schedule, trainers, options)


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


def _error_and_bound(fleet: Fleet, updates: DrawnUpdates, contributors: set[str]) -> tuple[float, float]:
    """Return the largest error of a value of the mean, and what the plan predicts (docs/own-model.md, Precision)."""
    terms = fleet.clients[0].member.terms
    recipe, plan = terms.recipe, terms.sum_plan
    assert isinstance(recipe, Arrays)
    numbers = (number for number, client in enumerate(fleet.clients) if client.member.client_id in contributors)
    mean, weight = updates.mean(numbers)
    before, after = recipe.arrays(recipe.initial_state(terms.seed)), recipe.arrays(fleet.model())
    error = largest = 0.0
    for (place, new), (_, old) in zip(_placed(after), _placed(before), strict=True):
        error = max(error, float(np.abs(new.astype(np.float64) - old - mean[place]).max()))
        largest = max(largest, float(np.abs(new).max()))
    weight, clip = weight / MAX_WEIGHT, recipe.parameters.clip
    bound = (1.0 + clip) * plan.predicted_error / (weight - plan.predicted_error) + FLOAT32 * largest
    return error, bound


# ---


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run."""

    values: int = 10_000_000
    few: int = 20
    many: int = 100
    large: int = 100_000_000
    """Values of the large model, for `large_clients` clients."""
    large_clients: int = 3
    flower: int = 1_500_000
    """Values beside Flower."""
    whole: tuple[int, int] = (10, 1_000_000)
    """Clients and values of the round beside Flower as it is deployed."""
    wait: float = 30.0
    """Seconds for which a round waits for clients that drop out."""


FULL: Final = Sizes()
QUICK: Final = Sizes(10_000, 10, 20, 100_000, 3, 10_000, (3, 10_000), wait=4.0)


def rounds_of(sizes: Sizes) -> dict[str, OwnModelRound]:
    """The rounds of a run, by the first part of their keys."""
    found = {}
    for name, clients in (("few", sizes.few), ("many", sizes.many)):
        found[f"masked.{name}"] = OwnModelRound("masked", sizes.values, clients, clients // 10, wait=sizes.wait)
        found[f"oneshot.{name}"] = OwnModelRound("oneshot", sizes.values, clients)
    for kind in ("plain", "oneshot"):
        found[f"large.{kind}"] = OwnModelRound(kind, sizes.large, sizes.large_clients, workers=1, std=0.0)
    return found


def flower(sizes: Sizes, python: Path) -> dict[str, Figure]:
    """Flower's SecAgg+ and our protocol in a masked round of many clients, in one process each, `flower.*`.

    As many neighbours as ours, the same threshold and share of dropouts. `flower.contribution_bytes` is scaled to the
    model: all but some hundred bytes are of its values.
    """
    shape = Shape(sizes.many, sizes.flower, sizes.many // 10, parameters={})
    with closing(FlowerPeer(python)) as peer:
        answer = peer.ask("round", **shape.of_flower)
    vector = np.random.default_rng(20240513).uniform(-CLIP, CLIP, shape.values)
    vectors = np.broadcast_to(vector, (shape.clients, shape.values))
    ours = median(play_round(shape, vectors).server_seconds for _ in range(3))
    return {
        "version.flwr": answer["version"],
        "flower.large.server_s": answer["server_seconds"],
        "flower.large.client_s": sum(answer["client_seconds"].values()),
        "flower.large.our_protocol_s": ours,
        "flower.contribution_bytes": answer["contribution_bytes"] / shape.values * sizes.values,
        "own_model_protocol_speedup_vs_flower": answer["server_seconds"] / ours,
    }


def whole(sizes: Sizes, python: Path) -> dict[str, Figure]:
    """A masked round of Flower as it is deployed, and one of our server and clients, both over loopback, `whole.*`.

    As many clients, values and neighbours, the same threshold, nobody drops out. Our clients are in one process.
    """
    clients, values = sizes.whole
    near = make_plan({}, recipe("arrays", parameters_of(values)).layout(), clients).neighbourhood(clients)
    how = {"clients": clients, "values": values, "neighbours": near.degree, "threshold": near.threshold}
    figures: dict[str, Figure] = {f"whole.{key}": value for key, value in how.items()}
    figures |= {f"whole.flower.{key}": value for key, value in play_whole(python, how).items()}
    figures |= play("whole.hushrec", OwnModelRound("masked", values, clients))
    speedup = ratio(figures, "whole.flower.server_cpu_s", "whole.hushrec.server_cpu_s")
    return figures | {"whole.server_speedup_vs_flower": speedup, "whole.load_1m": os.getloadavg()[0]}


def compared(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures that follow from those of several parts; those of parts that are missing are left out."""
    ratios = {
        "own_model_bytes_ratio_vs_flower": ("masked.many.bytes_up_per_client", "flower.contribution_bytes"),
        "masked.peak_rss_ratio": ("masked.many.peak_rss_mib", "masked.few.peak_rss_mib"),
        "oneshot.peak_rss_ratio": ("oneshot.many.peak_rss_mib", "oneshot.few.peak_rss_mib"),
    }
    found: dict[str, Figure] = {
        key: ratio(figures, *pair) for key, pair in ratios.items() if all(each in figures for each in pair)
    }
    for name in ("large.plain", "large.oneshot"):
        if f"{name}.peak_rss_mib" in figures:
            found[f"{name}.peak_rss_gb"] = float(figures[f"{name}.peak_rss_mib"] or 0) * MIB / 1e9
    errors = [float(value or 0) for key, value in figures.items() if key.endswith(".error_of_bound")]
    return found | ({"largest_error_of_bound": max(errors)} if errors else {})


PARTS: Final = (*rounds_of(FULL), "flower", "whole")


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Measure the chosen parts; what was measured is kept if a later part fails."""
    sizes = QUICK if options.quick else FULL
    figures: dict[str, Figure] = {}
    if len(options.only) < len(PARTS) and options.json and options.json.exists():
        figures = json.loads(options.json.read_text())
    parts: dict[str, Callable[[], dict[str, Figure]]] = {
        name: partial(play, name, asked) for name, asked in rounds_of(sizes).items()
    }
    if options.peer_python is not None:
        parts["flower"] = partial(flower, sizes, options.peer_python)
        parts["whole"] = partial(whole, sizes, options.peer_python)
    for name, part in parts.items():
        if name in options.only:
            say(name)
            figures |= part()
            figures |= compared(figures)
            write_figures(options.json, figures)
    return figures


if __name__ == "__main__":
    run("arrays", arguments(__doc__, peer=True, parts=PARTS), measure)
