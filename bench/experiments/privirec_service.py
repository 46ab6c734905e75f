"""Run PriviRec-k through the real service: all users of MovieLens-100K are clients over HTTP, and some drop out.

    .venv/bin/python -m bench.experiments.privirec_service --data-dir data --json bench/results/privirec_service.json

Compares Recall@20 and NDCG@20 of GF-CF for ALL users, ranked over all items (20 % of each user's interactions held
out). `service`: from the service's sums; each device scores its own row, including those that dropped out. `central`:
from exact float64 singular vectors of the rows that were summed, with item degrees over the survivors of the first sum
and P over the survivors of the last.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from bench._report import READY_SECONDS, Figure, arguments, bars
from bench.figures import run
from bench.rounds import Dropouts, enrolled
from client_sdk.lab.central import central_components
from client_sdk.lab.data.interactions import interaction_rows
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import hold_out_share, only_users
from client_sdk.lab.evaluation.metrics import rank_all
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.lab.local_server import run_server
from client_sdk.training.graph_filters import GFCF
from protocols.messages import Schedule
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_parameters import PriviRecKParameters

DROPOUTS = {1: 0.06, 3: 0.04}
"""Share of all clients that drops out before it uploads, by sum; a tenth in total.

Only two sums have dropouts, because a sum with missing clients waits for its deadline.
"""
QUICK_USERS = 40


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Return the figures of a whole task over HTTP; `SystemExit` if not every sum was completed."""
    whole = load_interactions("ml-100k", options.data_dir)
    if options.quick:
        whole = only_users(whole, np.arange(QUICK_USERS))
    train, test = hold_out_share(whole)
    parameters = {"items": train.n_items, "components": 48, "oversampling": 80, "iterations": 4, "rayleigh_ritz": True}
    parameters |= {"reveal_gram": True, "min_owners": 1}  # as many equations as the papers', over all items
    recipe, users = PriviRecK(PriviRecKParameters(**parameters)), train.n_users
    wait_seconds = options.patience or (4.0 if options.quick else 180.0)
    schedule = Schedule(
        rounds=recipe.steps,
        cohort_size=users,
        min_clients=users // 2,
        min_difference=3,
        start_clients=users,
        collect_seconds=wait_seconds,
        stage_seconds=20 * wait_seconds,
    )
    rows = [train.positives(user) for user in range(users)]
    gone = {number: round(share * users) for number, share in DROPOUTS.items()}
    options = FleetOptions(dropout=0.5, dropout_rng=Dropouts(gone))
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server(Path(folder), READY_SECONDS) as server,
        enrolled(server, recipe, None, "masked", schedule, rows, options) as (fleet, _),
        bars() as shown,
    ):
        bar, started = shown.add_task("sums", total=recipe.steps), perf_counter()
        done = fleet.run(lambda report: shown.update(bar, completed=report.number))
        ended = perf_counter()
        scores = np.stack(list(fleet.scores()))
        order = {client.member.client_id: user for user, client in enumerate(fleet.clients)}
    sums = [report for report in done if report.state == "complete"]
    if len(sums) != recipe.steps:
        failures = [report.failure for report in done if report.failure]
        raise SystemExit(f"only {len(sums)} of {recipe.steps} sums were completed; failures: {failures}")
    members = []
    for report in (sums[0], sums[-1]):
        members.append(np.sort([order[one.client_id] for one in report.reports]))
        if members[-1].size != report.survivors:
            raise SystemExit(f"round {report.number} has {report.survivors} survivors, not {members[-1].size}")
    rows = interaction_rows(train)
    degrees = rows[members[0]].sum(axis=0, dtype=np.float64)
    exact = central_components(rows[members[1]], degrees, recipe.parameters.components)
    service = rank_all(scores.__getitem__, train, test)
    central = rank_all(lambda users: GFCF().scores(exact, rows[users]), train, test)
    return {
        "ml100k.users_ranked": service.users,
        "ml100k.service.recall20": service.recall,
        "ml100k.service.ndcg20": service.ndcg,
        "ml100k.central.recall20": central.recall,
        "ml100k.central.ndcg20": central.ndcg,
        "ml100k.difference": service.recall - central.recall,
        "ml100k.clients": users,
        "ml100k.survivors_first": sums[0].survivors,
        "ml100k.survivors_last": sums[-1].survivors,
        "ml100k.gone": 1 - sums[-1].survivors / done[0].asked,
        "ml100k.clipped": sum(report.clipped for report in sums),
        "ml100k.service.wall_s": ended - started,
    }


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of ml-100k")
    parser.add_argument("--patience", type=float, help="seconds that a sum waits for missing clients (default: 180)")
    run("privirec_service", parser, measure)
