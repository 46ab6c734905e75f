"""Rounds over HTTP for the benchmarks: a real server, and clients of the SDK in this process, each with its own keys.

`play` plays one round whose vectors are drawn, so that the released sum can be compared with the true one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench._report import MIB, Figure, Watch
from client_sdk.history import History
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.store.states import ClientState
from client_sdk.training.base import LocalResult
from protocols.layout import VectorLayout, whole_route
from protocols.messages import Schedule
from protocols.recipes.base import Contribution, ModelState, RoundSpec
from protocols.sums.base import SumPlan
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.plan import encode as encode_masked
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.oneshot.plan import encode as encode_oneshot

__all__ = ["READY_SECONDS", "Committee", "DrawnRound", "Played", "enrolled", "one_round", "play"]

READY_SECONDS = 120.0
"""Within which a server must listen; a busy machine takes long to import it."""


@contextmanager
def enrolled(
    server: DemoServer,
    recipe: str,
    parameters: Mapping[str, Any],
    mechanism: str,
    schedule: Schedule,
    interactions: Sequence[object],
    options: FleetOptions,
    mechanism_parameters: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Fleet, Operator]]:
    """Create a task, and enrol its clients and committee, with certificates where the mechanism asks for them."""
    organiser, clients = TrialOrganiser(), len(interactions)
    pin, certificates = (None, None) if mechanism == "plain" else (organiser.pin, organiser.source)
    given = (f"{mechanism}-{clients}", recipe, mechanism, schedule, dict(parameters), dict(mechanism_parameters or {}))
    with (
        Operator(server.url, server.operator_token) as operator,
        Fleet(server.url, interactions, options) as fleet,
    ):
        task_id = operator.create_task(task_request(*given, organiser=pin)).task_id
        fleet.enrol(operator.invite(task_id, uses=clients).invitation, certificates=certificates)
        plan = fleet.clients[0].member.terms.sum_plan
        if isinstance(plan, OneshotPlan):
            fleet.enrol_committee(operator.invite(task_id, plan.committee, "committee").invitation, certificates)
        yield fleet, operator


def one_round(fleet: Fleet) -> FleetRound:
    """Play one round; `SystemExit` if it failed."""
    (played,) = fleet.run(rounds=1)
    if played.state != "complete":
        raise SystemExit(f"the round failed: {played.failure}; clients: { {each.reason for each in played.missed} }")
    return played


class Committee:
    """Counts processor seconds and bytes of the fleet's committee, which works while the clients of the fleet wait."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._committee = fleet, fleet._committee
        self._attend, self.seconds, self.bytes = self._committee.attend, 0.0, 0
        self._committee.attend = self._counted  # type: ignore[method-assign]

    def _counted(self) -> None:
        seconds, traffic = time.process_time(), sum(self._fleet.traffic())
        self._attend()
        self.seconds += time.process_time() - seconds
        self.bytes += sum(self._fleet.traffic()) - traffic

    def figures(self) -> dict[str, Figure]:
        """`member_cpu_s` and `member_bytes`, of one member in the whole round; nothing without a committee."""
        members = len(self._committee.members)
        return {"member_cpu_s": self.seconds / members, "member_bytes": self.bytes / members} if members else {}


# --- A round of drawn vectors


@dataclass(frozen=True)
class DrawnRound:
    """What is played: FedMF sums items x dim values, and one count per item.

    dropout: share of the clients that drop out before they contribute; the round then waits for its deadline.
    stage_seconds: deadline of every state.
    """

    mechanism: str
    clients: int
    items: int = 10_000
    dim: int = 9
    parameters: Mapping[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    stage_seconds: float = 600.0


@dataclass(frozen=True)
class Played:
    """A round that is over, its plan, and what server and committee needed.

    exact: whether the released sum equals that of the contributors' vectors.
    """

    round: FleetRound
    plan: SumPlan
    exact: bool
    seconds: float
    watch: Watch
    committee: dict[str, Figure]

    def figures(self, name: str) -> dict[str, Figure]:
        """The figures of the round, with keys `<name>.*`."""
        sent = max(1, len(self.round.reports))
        found = {
            "exact": self.exact,
            "asked": self.round.asked,
            "survivors": self.round.survivors,
            "wall_s": self.seconds,
            "server_cpu_s": self.watch.cpu_seconds,
            "peak_rss_mib": self.watch.total / MIB,
            "peak_rss_api_mib": self.watch.api / MIB,
            "peak_rss_workers_mib": self.watch.workers / MIB,
            "bytes_up_per_client": self.round.bytes_up / sent,
            "bytes_down_per_client": self.round.bytes_down / sent,
            "contribution_bytes": self.round.reports[0].contribution_bytes,
            **self.committee,
        }
        return {f"{name}.{key}": value for key, value in found.items()}


@dataclass(frozen=True)
class DrawnVectorHalf:
    """A client half that sends a vector drawn from its client's number instead of training; nobody scores."""

    number: int
    layout: VectorLayout

    def vector(self) -> NDArray[np.float64]:
        """(layout.length,) float64 within the clips, counts 0 or 1."""
        block = self.layout.blocks[0]
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
    ) -> LocalResult:
        """The drawn vector; model and history have no effect."""
        return LocalResult(Contribution([self.vector()]), {}, float("nan"), 0)


def play(drawn: DrawnRound) -> Played:
    """Play one round whose cohort is all clients through a fresh server; `SystemExit` if it failed."""
    clients = drawn.clients
    schedule = Schedule(
        rounds=1,
        cohort_size=clients,
        min_clients=clients // 2,
        collect_seconds=drawn.stage_seconds,
        stage_seconds=drawn.stage_seconds,
    )
    options = FleetOptions(downloads="once", dropout=drawn.dropout, dropout_rng=np.random.default_rng(5))
    parameters = {"items": drawn.items, "dim": drawn.dim, "clip": 1.0}
    given = ("fedmf", parameters, drawn.mechanism, schedule, [[0]] * clients, options, drawn.parameters)
    with (
        tempfile.TemporaryDirectory() as root,
        run_server(Path(root), READY_SECONDS) as server,
        enrolled(server, *given) as (fleet, _),
    ):
        plan = fleet.clients[0].member.terms.sum_plan
        for number, client in enumerate(fleet.clients):
            client.half = DrawnVectorHalf(number, plan.layout)
        started, committee = time.perf_counter(), Committee(fleet)
        with Watch(server.pid) as watch:
            played = one_round(fleet)
        seconds = time.perf_counter() - started
        exact = _is_exact(fleet, {report.client_id for report in played.reports})
        return Played(played, plan, exact, seconds, watch, committee.figures())


def _is_exact(fleet: Fleet, contributors: set[str]) -> bool:
    """Whether the released sum equals that of the contributors' fixed-point values, element by element."""
    first = fleet.clients[0]
    plan, task_id = first.member.terms.sum_plan, first.member.terms.task_id
    vectors = [
        DrawnVectorHalf(number, plan.layout).vector
        for number, client in enumerate(fleet.clients)
        if client.member.client_id in contributors
    ]
    view = fleet._driver.run(first.member.calls.round(task_id, 1))
    body = fleet._driver.run(first.member.calls.aggregate(task_id, 1, plan.aggregate_bytes, view.aggregate_digest))
    if view.survivors != len(vectors) or body is None:
        return False
    route = whole_route(plan.layout)
    if isinstance(plan, MaskedPlan):
        total = np.zeros(plan.layout.length, plan.dtype)
        for vector in vectors:
            total += encode_masked(plan, route, [vector()])
        return bool(body == total.tobytes())
    assert isinstance(plan, OneshotPlan)
    whole = np.zeros(plan.layout.length, np.int64)
    for vector in vectors:
        whole += encode_oneshot(plan, route, [vector()])
    opened = ONESHOT.open(plan, body, len(vectors), None)
    return all((opened[where] * fixed.scale == whole[where]).all() for fixed, where in plan.places[0])
