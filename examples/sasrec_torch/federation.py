"""The federation: a server process, an organiser, and every client of the example, over HTTP with masked sums."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from client_sdk import ArraysRound, Operator, Policy
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.organiser import TrialOrganiser
from examples.sasrec_torch.fedavg import Arrays, Histories, Learner
from protocols.messages import OrganiserPin
from protocols.recipes.arrays import Arrays as ArraysRecipe

PARAMETERS: Final[dict[str, Any]] = {
    "clip": 0.5, "max_weight": 200, "optimiser": "adam", "server_rate": 0.03, "momentum": 0.9, "second_momentum": 0.99,
    "adaptivity": 1e-3,
}  # fmt: skip
"""Parameters of the task; its shapes are those of the file with the initial values."""


@dataclass(frozen=True)
class Progress:
    """One round."""

    number: int
    contributed: int
    """Clients in the sum."""
    clipped: int
    """Values of all updates that were clipped."""
    bytes_up: float
    bytes_down: float
    """Of one client, on average."""
    seconds: float
    """Of the whole round."""


def task_arguments(name: str, mechanism: str, clients: int, rounds: int, rows: tuple[str, ...]) -> list[str]:
    """Return the arguments of `hushrec-server task create`: every client takes part in each round."""
    listed = "[" + ", ".join(f'"{row}"' for row in rows) + "]"
    recipe = [
        f"rows={listed}",
        "reveal_rows=true",
        "reveal_weights=true",
        *(f"{key}={value}" for key, value in PARAMETERS.items()),
    ]
    schedule = {"rounds": rounds, "cohort_size": clients, "start_clients": clients, "min_clients": max(3, clients // 2)}
    schedule |= {"collect_seconds": 3600, "stage_seconds": 600}  # one process plays all clients, one after the other
    return [
        "create", name, "--recipe", "arrays", "--mechanism", mechanism,
        *(word for entry in recipe for word in ("-r", entry)),
        *(word for key, value in schedule.items() for word in ("-s", f"{key}={value}")),
    ]  # fmt: skip


def create_task(server: DemoServer, arguments: list[str], initial: Arrays, pin: OrganiserPin, folder: Path) -> str:
    """Create the task with these initial values, by the operator's command on the server's machine; return its id."""
    path = folder / "initial.safetensors"
    save_file(initial, path)
    command = [sys.executable, "-m", "aggregator_service.cli", "task", *arguments, "--initial", str(path)]
    command += ["--organiser", pin.key, "--scope", pin.scope, "--data-dir", str(server.data_dir)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the task was not created: {done.stderr.strip() or done.stdout.strip()}")
    return str(json.loads(done.stdout)["task_id"])


def trainer_of(learner: Learner, items: NDArray[np.int32], client: int) -> Callable[[ArraysRound], None]:
    """Return what a client does in a round. Its history stays in this function."""

    def trainer(asked: ArraysRound) -> None:
        arrays = asked.arrays()
        new, examples = learner.train(arrays, items, (client, asked.number))
        asked.contribute({name: new[name] - arrays[name] for name in new}, weight=examples)

    return trainer


def federate(
    folder: Path,
    learner: Learner,
    histories: Histories,
    rounds: int,
    on_round: Callable[[Progress, Arrays], None],
    mechanism: str = "masked",
) -> Arrays:
    """Play the task and return the last arrays. on_round: called with each round and the arrays after it."""
    organiser, count = TrialOrganiser("sasrec"), len(histories)
    policy = Policy(mechanisms=frozenset({"masked", "oneshot", "plain"}), trust_models=True, max_clip_share=1.0)
    trainers = [trainer_of(learner, items, client) for client, items in enumerate(histories)]
    with run_server(folder / "server", 180.0) as server, Operator(server.url, server.operator_token) as operator:
        arguments = task_arguments("sasrec", mechanism, count, rounds, learner.rows)
        task = create_task(server, arguments, learner.initial(), organiser.pin, folder)
        with Fleet(server.url, trainers, FleetOptions(policy=policy, seed=1, downloads="once")) as fleet:
            fleet.enrol(operator.invite(task, count).invitation, None, organiser.source)
            if mechanism == "oneshot":
                fleet.enrol_committee(operator.invite(task, 5, "committee").invitation, organiser.source)
            recipe = fleet.clients[0].member.terms.recipe
            assert isinstance(recipe, ArraysRecipe)

            def measure(report: FleetRound) -> None:
                if report.state != "complete":
                    raise RuntimeError(f"round {report.number} failed: {report.failure}")
                sent, received = (total / report.survivors for total in (report.bytes_up, report.bytes_down))
                progress = Progress(report.number, report.survivors, report.clipped, sent, received, report.seconds)
                on_round(progress, recipe.arrays(fleet.model()))

            fleet.run(measure)
            return recipe.arrays(fleet.model())
