"""Whole tasks over one-shot sums beside the same tasks with another mechanism: the figures are equal within rounding.

    .venv/bin/python -m bench.oneshot_tasks colr --data data --users 200 --cohort 20
    .venv/bin/python -m bench.oneshot_tasks privirec-k --data data --users 100

colr: CoLR on MovieLens-1M; HR@10 and NDCG@10 after the last round, and the largest difference of any measurement in
between. privirec-k: PriviRec-k on MovieLens-100K; singular values, and Recall@20 and NDCG@20 of GF-CF on the devices.
Every client is a client over HTTP, and a committee of five opens the sums. --users: so many users drawn at random,
since each is a client; without it all. --beside: the other mechanism, masked or plain. Clients and committee run in one
process, the server in another.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.data.holdout import hold_out_share
from client_sdk.data.interactions import leave_one_out
from client_sdk.data.loaders import load_interactions
from client_sdk.data.subset import sample_users
from client_sdk.demo.arms import Arm, ArmProgress, SharedSetup, run_arm
from client_sdk.demo.privirec.ranking import rank_filters
from client_sdk.demo.privirec.setup import PriviRecRequest, PriviRecSetup
from client_sdk.demo.server import DemoServer, run_server
from client_sdk.demo.settings import settings_for
from client_sdk.evaluation.leave_one_out import candidates_of
from client_sdk.local_state.identity import Identity
from client_sdk.operator import Operator
from client_sdk.organiser import TrialOrganiser
from client_sdk.simulation.fleet import Fleet
from client_sdk.simulation.fleet_options import FleetOptions
from protocols.codec import b64encode
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.privirec.state import privirec_state
from protocols.recipes.registry import recipe as make_recipe

BESIDE = ("masked", "plain")
POLICY = Policy(mechanisms=frozenset(("oneshot", *BESIDE)))


def colr(server: DemoServer, options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Train CoLR at rank 4 over both mechanisms, with the demo's settings for MovieLens-1M."""
    mechanisms = ("oneshot", options.beside)
    settings, seed = settings_for("ml-1m"), 0
    whole = load_interactions("ml-1m", options.data, None)
    data = leave_one_out(whole if options.users is None else sample_users(whole, options.users, seed), seed)
    negatives, _ = candidates_of(data, np.random.default_rng(seed))
    clients = int(np.count_nonzero(np.diff(data.train.indptr) > 0))
    shared = SharedSetup(
        data=data,
        candidates=negatives,
        identities=[Identity.generate() for _ in range(clients)],
        training=settings.training,
        rounds=options.rounds,
        cohort=min(options.cohort, clients),
        collect_seconds=600.0,
        dropout=0.0,
        seed=seed,
        evaluate_every=max(1, options.rounds // 10),
    )
    parameters = {"dim": settings.dim, "rank": settings.rank, "clip": settings.clip}

    def show(progress: ArmProgress) -> None:
        if progress.report is not None:
            say(f"{progress.arm.name}: round {progress.report.number}, {progress.point}")

    done = [run_arm(Arm(name, "colr", parameters, name, {}), shared, server, show)[0] for name in mechanisms]
    curves = [[(point.hr, point.ndcg) for point in arm.curve] for arm in done]
    return {
        "users": clients,
        "items": data.train.n_items,
        "rounds": options.rounds,
        "cohort": shared.cohort,
        "hr_at_10": {arm.name: arm.hr for arm in done},
        "ndcg_at_10": {arm.name: arm.ndcg for arm in done},
        "largest_difference": float(np.abs(np.subtract(*curves)).max()),
        "seconds": {arm.name: arm.seconds for arm in done},
    }


def privirec(server: DemoServer, options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Run PriviRec-k over both mechanisms, with the demo's settings for MovieLens-100K."""
    whole = load_interactions("ml-100k", options.data, None)
    found = whole if options.users is None else sample_users(whole, options.users, 0)
    train, test = hold_out_share(found, rng=0)
    mechanisms, figures = ("oneshot", options.beside), dict[str, Any]()
    for mechanism in mechanisms:
        parameters = {"components": 48, "iterations": 4, "oversampling": 80, "rayleigh_ritz": True}
        recipe = make_recipe("privirec-k", {**parameters, "items": train.n_items})
        if not isinstance(recipe, PriviRecK):
            raise TypeError("privirec-k is not the recipe of this bench")
        organiser = None if mechanism == "plain" else TrialOrganiser()
        setup = PriviRecSetup(PriviRecRequest("ml-100k", mechanism=mechanism), recipe, train, test, organiser)
        histories = [train.positives(int(user)) for user in setup.users]
        with (
            Operator(server.url, server.operator_token) as operator,
            Fleet(server.url, histories, FleetOptions(policy=POLICY, seed=0)) as fleet,
        ):
            task = operator.create_task(
                setup.task_request().model_copy(update={"name": mechanism, "seed": b64encode(bytes(32))})
            )
            certificates = None if organiser is None else organiser.source
            fleet.enrol(operator.invite(task.task_id, len(histories)).invitation, None, certificates)
            if mechanism == "oneshot":
                fleet.enrol_committee(operator.invite(task.task_id, 5, "committee").invitation, certificates)
            reports = fleet.run(lambda report: say(f"sum {report.number}: {report.survivors} clients"))
            state, ranked = privirec_state(fleet.model()), rank_filters(setup, fleet)[0].ranking
        figures[mechanism] = {
            "singular_values": [float(value) for value in state.singular_values[:48]],
            "recall_at_20": ranked.recall,
            "ndcg_at_20": ranked.ndcg,
            "seconds": sum(report.seconds for report in reports),
        }
    values = [np.array(figures[mechanism].pop("singular_values")) for mechanism in mechanisms]
    return {
        "users": len(train.user_degrees()),
        "items": train.n_items,
        "sums": len(reports),
        **figures,
        "largest_difference_of_singular_values": float(np.abs(values[0] - values[1]).max()),
        "largest_singular_value": float(values[1].max()),
    }


def main() -> None:
    """Run one task over both mechanisms and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("colr", "privirec-k"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with the data sets")
    parser.add_argument("--users", type=int, help="users drawn at random; all without it")
    parser.add_argument("--beside", choices=BESIDE, default=BESIDE[0], help="the mechanism to compare with")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of colr")
    parser.add_argument("--cohort", type=int, default=60, help="clients in each round of colr")
    options = parser.parse_args()
    with TemporaryDirectory() as folder, run_server(Path(folder) / "server", timeout=300.0) as server:
        run = colr if options.task == "colr" else privirec
        print(json.dumps(run(server, options, lambda line: print(line, flush=True)), indent=2))


if __name__ == "__main__":
    main()
