"""Run PriviRec-k through the real service: all users of MovieLens-100K are clients over HTTP, and some drop out.

    .venv/bin/python -m bench.experiments.privirec_service --data-dir data --json bench/results/privirec_service.json

Compares Recall@20 and NDCG@20 of GF-CF for ALL users, ranked over all items (20 % of each user's interactions held
out). `service`: from the service's sums; each device scores its own row, including those that dropped out. `central`:
from exact float64 singular vectors of the rows that were summed, with item degrees over the survivors of the first sum
and P over the survivors of the last. `everyone`: the same without dropouts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from bench._report import Figure, arguments, bars
from bench.registry import finish
from client_sdk.agreement.policy import Policy
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.published import load_interactions
from client_sdk.lab.data.splits import hold_out_share
from client_sdk.lab.demo.spectrum import central_components
from client_sdk.lab.evaluation.full_ranking import RankingResult, rank_all
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import run_server
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.training.graph_filters import GFCF, Components
from protocols.messages import Schedule
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_parameters import PriviRecKParameters
from protocols.sums.masked.mechanism import MASKED

DROPOUTS = {1: 0.06, 3: 0.04}
"""Share of all clients that drops out before it uploads, by sum; a tenth in total.

Only two sums have dropouts, because a sum with missing clients waits for its deadline.
"""
QUICK_USERS = 40


def main() -> None:
    """Measure, print all figures, and write the JSON."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--data-dir", type=Path, help="folder of ml-100k")
    parser.add_argument("--patience", type=float, help="seconds that a sum waits for missing clients (default: 180)")
    options = parser.parse_args()
    train, test = hold_out_share(_data(options))
    recipe = PriviRecK(
        PriviRecKParameters(items=train.n_items, components=48, oversampling=80, iterations=4, rayleigh_ritz=True)
    )
    figures = _through_the_service(recipe, train, test, options.patience or (4.0 if options.quick else 180.0))
    finish("privirec_service", figures, options.json)


def _data(options: argparse.Namespace) -> Interactions:
    whole = load_interactions("ml-100k", options.data_dir)
    if not options.quick:
        return whole
    end = whole.indptr[QUICK_USERS]
    return Interactions(QUICK_USERS, whole.n_items, whole.indptr[: QUICK_USERS + 1], whole.items[:end])


class ScheduledDropouts(np.random.Generator):
    """A generator for a fleet's dropouts: in round r a share `DROPOUTS[r]` of the draws is below one half."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self._round, self._cohort = 0, 0

    def random(self, size: int) -> np.ndarray:
        """float64 (size,) of ones and zeros in random order; the zeros are a share of the first round's size."""
        self._round, self._cohort = self._round + 1, max(self._cohort, size)
        drawn = np.ones(size)
        drawn[: round(DROPOUTS.get(self._round, 0.0) * self._cohort)] = 0.0
        return self.permutation(drawn)


def _through_the_service(
    recipe: PriviRecK, train: Interactions, test: Interactions, wait_seconds: float
) -> dict[str, Figure]:
    """Figures of a whole task over HTTP; `SystemExit` if not every sum was completed."""
    users, started = train.n_users, perf_counter()
    schedule = Schedule(
        rounds=recipe.steps,
        cohort_size=users,
        min_clients=users // 2,
        min_difference=3,
        start_clients=users,
        collect_seconds=wait_seconds,
        stage_seconds=20 * wait_seconds,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server(Path(folder) / "server", timeout=300.0) as server,
        Operator(server.url, server.operator_token) as operator,
        Fleet(
            server.url,
            [train.positives(user) for user in range(users)],
            FleetOptions(policy=Policy(mechanisms=frozenset({"masked"})), dropout=0.5, dropout_rng=ScheduledDropouts()),
        ) as fleet,
        bars() as shown,
    ):
        bar = shown.add_task("sums", total=recipe.steps)
        organiser = TrialOrganiser()
        task = operator.create_task(task_request("privirec", recipe, "masked", schedule, organiser=organiser.pin))
        fleet.enrol(operator.invite(task.task_id, users).invitation, None, organiser.source)
        enrolled = perf_counter()
        done = fleet.run(lambda report: shown.update(bar, completed=report.number))
        ended = perf_counter()
        scores = np.stack(list(fleet.scores()))
        up, down = fleet.traffic()
        order = {client.member.client_id: user for user, client in enumerate(fleet.clients)}
    sums = [report for report in done if report.state == "complete"]
    if len(sums) != recipe.steps:
        failures = [report.failure for report in done if report.failure]
        raise SystemExit(f"only {len(sums)} of {recipe.steps} sums were completed; failures: {failures}")
    return {
        **_rankings(recipe, train, test, scores, [_contributors(report, order) for report in (sums[0], sums[-1])]),
        **_costs(sums, done),
        "ml100k.service.enrol_s": enrolled - started,
        "ml100k.service.wall_s": ended - enrolled,
        "ml100k.service.bytes_up": up,
        "ml100k.service.bytes_down": down,
        "ml100k.service.predicted_error": MASKED.plan({}, recipe.layout(2), users).predicted_error,
        "ml100k.clients": users,
        "ml100k.components": recipe.parameters.components,
        "ml100k.columns": recipe.parameters.columns,
        "ml100k.iterations": recipe.parameters.iterations,
    }


def _contributors(report: FleetRound, order: dict[str, int]) -> np.ndarray:
    """The users whose rows are in a sum, ascending; `SystemExit` if their number is not that of the survivors."""
    users = np.sort([order[one.client_id] for one in report.reports])
    if users.size != report.survivors:
        raise SystemExit(f"round {report.number} has {report.survivors} survivors but {users.size} client reports")
    return users


def _rankings(
    recipe: PriviRecK, train: Interactions, test: Interactions, scores: np.ndarray, members: Sequence[np.ndarray]
) -> dict[str, Figure]:
    rows, columns = interaction_rows(train), recipe.parameters.components

    def by(components: Components) -> RankingResult:
        return rank_all(lambda users: GFCF().scores(components, rows[users]), train, test)

    found = {
        "service": rank_all(scores.__getitem__, train, test),
        "central": by(central_components(train, columns, *members)[0]),
        "everyone": by(central_components(train, columns)[0]),
    }
    figures: dict[str, Figure] = {"ml100k.users_ranked": found["service"].users}
    for name, result in found.items():
        figures |= {f"ml100k.{name}.recall20": result.recall, f"ml100k.{name}.ndcg20": result.ndcg}
    figures["ml100k.difference"] = found["service"].recall - found["central"].recall
    figures["ml100k.difference_ndcg20"] = found["service"].ndcg - found["central"].ndcg
    return figures


def _costs(sums: Sequence[FleetRound], done: Sequence[FleetRound]) -> dict[str, Figure]:
    parts = sum(len(report.reports) for report in sums)
    return {
        "ml100k.survivors_first": sums[0].survivors,
        "ml100k.survivors_last": sums[-1].survivors,
        "ml100k.gone": 1 - sums[-1].survivors / done[0].asked,
        "ml100k.rounds": len(done),
        "ml100k.rounds_failed": len(done) - len(sums),
        "ml100k.clipped": sum(report.clipped for report in sums),
        "ml100k.service.seconds_a_sum": float(np.mean([report.seconds for report in sums])),
        "ml100k.service.bytes_up_a_client_and_sum": sum(report.bytes_up for report in sums) / parts,
        "ml100k.service.bytes_down_a_client_and_sum": sum(report.bytes_down for report in sums) / parts,
    }


if __name__ == "__main__":
    main()
