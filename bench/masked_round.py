"""Measure a masked round of 1,000 clients over HTTP: whether the sum is exact, time, and the server's memory.

    .venv/bin/python -m bench.masked_round [--quick] [--json FILE]

A real `hushrec-server` and 1,000 clients of the SDK in this process, each with its own keys, masks and requests;
100,000 values in a 32-bit ring. 5 % of the clients drop out after they shared their secrets, the stage in which
dropouts cost the server most. The vectors are drawn here, so the sum can be compared with the true one, element by
element in the ring. The same round with 200 clients runs first, to compare the server's peak memory.
bench/README.md lists the keys.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure, arguments, bars, show, write_figures
from bench._server import OPERATOR_TOKEN, Server, Watch
from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.simulation.fleet import Fleet
from client_sdk.simulation.fleet_options import FleetOptions
from client_sdk.training.base import LocalResult
from protocols.layout import whole_route
from protocols.messages import Schedule
from protocols.recipes.base import ModelState, RoundSpec
from protocols.sums.masked.plan import MaskedPlan, encode

SIZES = (200, 1000)
DROPOUT = 0.05
ITEMS, DIM = 10_000, 9
"""FedMF sums items x dim values and one count per item: 100,000 in total."""
MIB = 2**20


@dataclass(frozen=True)
class DrawnVectorHalf:
    """A client half that sends a vector drawn from its client's number instead of training."""

    number: int
    plan: MaskedPlan

    def vector(self) -> NDArray[np.float64]:
        """(layout.length,) float64 within the clips, counts 0 or 1."""
        block = self.plan.layout.blocks[0]
        random = np.random.default_rng([1, self.number])
        values = random.uniform(-1.0, 1.0, block.length) * block.bounds()
        return np.where(block.integral_mask(), np.rint(np.abs(values)), values)

    def initial_client_state(self, rng: np.random.Generator) -> ClientState:
        """No state: nothing is trained."""
        return {}

    def contribute(
        self,
        spec: RoundSpec,
        client_id: str,
        state: ModelState,
        history: History,
        client_state: ClientState,
        rng: np.random.Generator,
        excluded: NDArray[np.int32] | None = None,
    ) -> LocalResult:
        """The drawn vector; model and history have no effect."""
        return LocalResult([self.vector()], 0, {}, float("nan"), 0)

    def prepare(self, spec: RoundSpec, state: ModelState, history: History, rng: np.random.Generator) -> ClientState:
        """No state: nothing is trained."""
        return {}

    def scores(self, state: ModelState, client_state: ClientState, history: History) -> NDArray[np.float32]:
        """Zeros, float32 (items,)."""
        return np.zeros(ITEMS, dtype=np.float32)


def start_task(server: Server, clients: int, stage_seconds: float) -> tuple[Fleet, Any]:
    """Create a task of one round whose cohort is all clients; return its enrolled fleet and the operator."""
    schedule = Schedule(
        rounds=1,
        cohort_size=clients,
        min_clients=clients // 2,
        collect_seconds=stage_seconds,
        stage_seconds=stage_seconds,
    )
    operator = Operator(server.url, OPERATOR_TOKEN)
    parameters = {"items": ITEMS, "dim": DIM, "clip": 1.0}
    organiser = TrialOrganiser()
    request = task_request(
        f"round-{clients}", "fedmf", "masked", schedule, parameters, {"bits": 32}, organiser=organiser.pin
    )
    task = operator.create_task(request)
    fleet = Fleet(
        server.url,
        [[0]] * clients,
        FleetOptions(
            downloads="once", dropout=DROPOUT, dropout_rng=np.random.default_rng(5), dropout_stage="collecting"
        ),
    )
    invitation = operator.invite(task.task_id, uses=clients).invitation
    fleet.enrol(invitation, certificates=organiser.source)
    for number, client in enumerate(fleet.clients):
        plan = client.terms.sum_plan
        assert isinstance(plan, MaskedPlan)
        client.half = DrawnVectorHalf(number, plan)
    return fleet, operator


def is_exact(fleet: Fleet, reports: set[str]) -> bool:
    """Whether the released sum equals that of the contributing clients, element by element of the ring."""
    first = fleet.clients[0]
    plan = first.terms.sum_plan
    assert isinstance(plan, MaskedPlan)
    total = np.zeros(plan.layout.length, plan.dtype)
    for number, client in enumerate(fleet.clients):
        if client.membership.client_id in reports:
            total += encode(plan, whole_route(plan.layout), [DrawnVectorHalf(number, plan).vector()])
    view = fleet._driver.run(first.calls.round(first.terms.task_id, 1))
    digest = view.aggregate_digest
    body = fleet._driver.run(first.calls.aggregate(first.terms.task_id, 1, plan.aggregate_bytes, digest))
    return view.survivors == len(reports) and body == total.tobytes()


def measure(clients: int, stage_seconds: float) -> dict[str, Figure]:
    """Figures of one round through a fresh server; `SystemExit` if the round failed."""
    with tempfile.TemporaryDirectory() as root, Server(Path(root)) as server:
        fleet, operator = start_task(server, clients, stage_seconds)
        with fleet, operator:
            started = time.perf_counter()
            with Watch(server.pid) as watch:
                (played,) = fleet.run(rounds=1)
            wall = time.perf_counter() - started
            if played.state != "complete":
                raise SystemExit(f"the round failed: {played.failure}")
            sent, received = played.bytes_up, played.bytes_down
            exact = is_exact(fleet, {report.client_id for report in played.reports})
            plan = fleet.clients[0].terms.sum_plan
            assert isinstance(plan, MaskedPlan)
            near = plan.neighbourhood(clients)
    name = f"round{clients}"
    return {
        f"{name}.exact": exact,
        f"{name}.asked": played.asked,
        f"{name}.survivors": played.survivors,
        f"{name}.neighbours": near.degree,
        f"{name}.threshold": near.threshold,
        f"{name}.wall_s": wall,
        f"{name}.server_cpu_s": watch.cpu_seconds,
        f"{name}.peak_rss_mib": watch.total / MIB,
        f"{name}.peak_rss_api_mib": watch.api / MIB,
        f"{name}.peak_rss_workers_mib": watch.workers / MIB,
        f"{name}.bytes_up_per_client": sent / max(1, len(played.reports)),
        f"{name}.bytes_down_per_client": received / max(1, len(played.reports)),
        f"{name}.contribution_bytes": played.reports[0].contribution_bytes,
    }


def measure_sizes(quick: bool) -> dict[str, Figure]:
    """Figures of both rounds, the small one first, and the ratio of their peak memory."""
    sizes = (40, 100) if quick else SIZES
    figures: dict[str, Figure] = {}
    with bars() as progress:
        bar = progress.add_task("rounds", total=len(sizes))
        for clients in sizes:
            figures |= measure(clients, stage_seconds=max(20.0, 0.15 * clients))
            progress.advance(bar)
    small, large = (float(figures[f"round{clients}.peak_rss_mib"] or 0) for clients in sizes)
    figures[f"round{sizes[1]}.peak_rss_ratio"] = large / small
    return figures


def main() -> None:
    """Measure, print all figures, and write the JSON."""
    options = arguments(__doc__ or "").parse_args()
    figures = measure_sizes(options.quick)
    show("One masked round over HTTP", figures)
    write_figures(options.json, figures)


if __name__ == "__main__":
    main()
