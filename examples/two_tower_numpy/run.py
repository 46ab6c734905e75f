"""Train the two-tower model with clients in one process over a real server; print HR@10 by round."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client_sdk import ArraysRound, Operator, Policy, task_request
from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.lab.local_server import run_server
from client_sdk.organiser import TrialOrganiser
from examples.two_tower_numpy.two_tower import Arrays, scores, shapes, train
from protocols.messages import Schedule

DIM = 16
POLICY = Policy(mechanisms=frozenset({"masked", "oneshot", "plain"}), trust_models=True, max_clip_share=1.0)


def parameters(items: int) -> dict[str, Any]:
    """Return the parameters of the task."""
    return {
        "shapes": shapes(items, DIM),
        "rows": ["items"],
        "reveal_rows": True,
        "clip": 0.5,
        "max_weight": 50,
        "reveal_weights": True,
        "optimiser": "adam",
        "server_rate": 0.03,
        "std": 0.25,
    }


def trainer_of(data: LeaveOneOut, user: int) -> Callable[[ArraysRound], None]:
    """Return what one client does in a round. Its items stay in this function."""
    mine = data.train.positives(user)
    rng = np.random.default_rng(user)

    def trainer(asked: ArraysRound) -> None:
        arrays = asked.arrays()
        new, _ = train(arrays, mine, rng)
        asked.contribute({name: new[name] - arrays[name] for name in new}, weight=mine.size)

    return trainer


def hit_ratio(data: LeaveOneOut, arrays: Arrays | None) -> float:
    """Return the share of users whose held-out item is among the best ten that they do not have.

    arrays: None for the ranking by popularity.
    """
    counts, hits = np.bincount(data.train.items, minlength=data.train.n_items).astype(float), []
    for user, item in enumerate(data.test_items):
        mine = data.train.positives(int(user))
        found = (counts if arrays is None else scores(arrays, mine)).astype(float)
        found[mine] = -np.inf
        hits.append((found > found[item]).sum() < 10)
    return float(np.mean(hits))


def run(folder: Path, clients: int = 40, items: int = 150, rounds: int = 12, mechanism: str = "masked") -> list[float]:
    """Play the task and return HR@10 of popularity, of the initial model, and after each third of the rounds."""
    data = leave_one_out(synthetic(SyntheticConfig(users=clients, items=items, positives=14)), 0)
    organiser, curve = TrialOrganiser("two-tower"), [hit_ratio(data, None)]
    schedule = Schedule(rounds=rounds, cohort_size=clients, start_clients=clients, min_clients=max(3, clients // 2))
    with run_server(folder, 180.0) as server, Operator(server.url, server.operator_token) as operator:
        request = task_request(
            "two-tower", "arrays", mechanism, schedule, parameters(items), seed=bytes(32), organiser=organiser.pin
        )
        task = operator.create_task(request).task_id
        trainers = [trainer_of(data, user) for user in range(clients)]
        with Fleet(server.url, trainers, FleetOptions(policy=POLICY, seed=1)) as fleet:
            fleet.enrol(operator.invite(task, clients).invitation, None, organiser.source)
            if mechanism == "oneshot":
                fleet.enrol_committee(operator.invite(task, 5, "committee").invitation, organiser.source)
            recipe = fleet.clients[0].member.terms.recipe
            curve.append(hit_ratio(data, recipe.arrays(recipe.initial_state(bytes(32)))))  # type: ignore[attr-defined]

            def measure(report: Any) -> None:
                if report.number % max(1, rounds // 3) == 0:
                    curve.append(hit_ratio(data, recipe.arrays(fleet.model())))  # type: ignore[attr-defined]
                    print(f"round {report.number}: HR@10 {curve[-1]:.3f}, {report.survivors} clients")

            print(f"HR@10 of popularity {curve[0]:.3f}, of the initial model {curve[1]:.3f}")
            fleet.run(measure)
    return curve


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--items", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--mechanism", choices=("masked", "oneshot", "plain"), default="masked")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder) / "server", given.clients, given.items, given.rounds, given.mechanism)
    return 0


if __name__ == "__main__":
    sys.exit(main())
