"""Rounds over HTTP: a real server, and clients of the SDK in this process, each with its own keys, masks and requests.

    .venv/bin/python -m bench.rounds masked_round [--quick] [--only memory cost groups] [--json FILE]
    .venv/bin/python -m bench.rounds oneshot_round [--quick] [--only masked size] [--json FILE]

Of `masked_round`, part `memory` compares the server's memory in two rounds, `cost` is what a client of 10,000 values
costs it, and `groups` the same in four groups of 1,000 clients. Of `oneshot_round`, part `masked` has rounds of both
mechanisms, with nobody and with 10 % of the clients gone, and `size` one-shot rounds. Vectors are drawn, so that every
released sum can be compared with the true one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench._report import MIB, READY_SECONDS, Figure, Watch, arguments, ratio, say
from bench.figures import run
from bench.lockstep import Lockstep
from client_sdk.history import History
from client_sdk.lab.enrolled import enrolled_fleet
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.lab.local_server import DemoServer, run_server
from client_sdk.operator import Operator, task_request
from client_sdk.organiser import TrialOrganiser
from client_sdk.store.states import ClientState
from client_sdk.training.base import ClientSide, LocalResult
from protocols.layout import VectorLayout, whole_route
from protocols.messages import Schedule
from protocols.recipes.base import Contribution, ModelState, Recipe, RoundSpec
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.oneshot.mechanism import ONESHOT
from protocols.sums.oneshot.plan import OneshotPlan

# --- Shared by all benchmarks of rounds over HTTP


class Dropouts(np.random.Generator):
    """Decides for a fleet whose dropout is 0.5: in round r, `counts[r]` clients of the cohort drop out."""

    def __init__(self, counts: Mapping[int, int]) -> None:
        super().__init__(np.random.PCG64(0))
        self._counts, self._round = counts, 0

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        """float64 (size,) of ones and, for clients that drop out, zeros, in random order."""
        self._round += 1
        return self.permutation((np.arange(size) >= self._counts.get(self._round, 0)).astype(np.float64))


@contextmanager
def enrolled(
    server: DemoServer,
    recipe: str | Recipe,
    parameters: Mapping[str, Any] | None,
    mechanism: str,
    schedule: Schedule,
    interactions: Sequence[object],
    options: FleetOptions,
    mechanism_parameters: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Fleet, Operator]]:
    """Create a task, and enrol its clients and committee, with certificates where the mechanism asks for them.

    parameters: of the recipe, where it is a name.
    """
    organiser, name = None if mechanism == "plain" else TrialOrganiser(), f"{mechanism}-{len(interactions)}"
    given = (name, recipe, mechanism, schedule, parameters, dict(mechanism_parameters or {}))
    request = task_request(*given, organiser=None if organiser is None else organiser.pin)
    with enrolled_fleet(server, request, interactions, options, organiser) as (operator, fleet, _):
        yield fleet, operator


def one_round(fleet: Fleet) -> FleetRound:
    """Play one round; `SystemExit` if it failed."""
    (played,) = fleet.run(rounds=1)
    if played.state != "complete":
        raise SystemExit(f"the round failed: {played.failure}; clients: { {each.reason for each in played.missed} }")
    return played


class Measured(NamedTuple):
    """A round that is over."""

    round: FleetRound
    watch: Watch
    """Memory and time of the server."""
    client_seconds: float
    """Processor time of this process without that of the committee."""
    figures: dict[str, Figure]
    """Of the server and of a client, and of one member of the committee in the whole round, if there is one."""


def measure_round(server: DemoServer, fleet: Fleet) -> Measured:
    """Play and measure one round of a fleet, whose committee works while its clients wait."""
    committee, attend = fleet._committee, fleet._committee.attend
    seconds, traffic = 0.0, 0

    def counted() -> None:
        nonlocal seconds, traffic
        started, before = time.process_time(), sum(fleet.traffic())
        attend()
        seconds += time.process_time() - started
        traffic += sum(fleet.traffic()) - before

    committee.attend = counted  # type: ignore[method-assign]
    started, spent = time.perf_counter(), time.process_time()
    with Watch(server.pid) as watch:
        played = one_round(fleet)
    wall, spent = time.perf_counter() - started, time.process_time() - spent - seconds
    sent, members = max(1, len(played.reports)), len(committee.members)
    figures: dict[str, Figure] = {
        "survivors": played.survivors,
        "wall_s": wall,
        "server_cpu_s": watch.cpu_seconds,
        "peak_rss_mib": watch.total / MIB,
        "bytes_up_per_client": played.bytes_up / sent,
        "bytes_down_per_client": played.bytes_down / sent,
        "contribution_bytes": played.reports[0].contribution_bytes,
    }
    figures |= {"member_cpu_s": seconds / members, "member_bytes": traffic / members} if members else {}
    return Measured(played, watch, spent, figures)


def named(name: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    return {f"{name}.{key}": value for key, value in figures.items()}


# --- A round of drawn vectors


@dataclass(frozen=True)
class DrawnRound:
    """What is played: FedMF sums items x dim values, and one count per item."""

    mechanism: str
    clients: int
    items: int = 10_000
    dim: int = 9
    parameters: Mapping[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    """Share of the clients that drop out before they contribute; the round then waits for its deadline."""
    stage_seconds: float = 600.0
    """Deadline of every state."""
    in_step: bool = False
    """Whether clients send together what they made beforehand (`bench.lockstep`), as many devices would; otherwise each
    sends what it makes, two at a time."""


@dataclass(frozen=True)
class DrawnVectorSide(ClientSide):
    """A client side that sends a vector drawn from its client's number instead of training; nobody scores."""

    number: int
    layout: VectorLayout

    def vector(self) -> NDArray[np.float64]:
        """(layout.length,) float64 within the clips, counts 0 or 1."""
        block = self.layout.blocks[0]
        random = np.random.default_rng([1, self.number])
        values = random.uniform(-1.0, 1.0, block.length) * block.bounds()
        return np.where(block.integral_mask(), np.rint(np.abs(values)), values)

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


def play(name: str, drawn: DrawnRound) -> dict[str, Figure]:
    """Play one round whose cohort is all clients through a fresh server; its figures `<name>.*`.

    `SystemExit` if it failed.
    """
    clients, seconds = drawn.clients, drawn.stage_seconds
    say(f"{drawn.mechanism}, {clients} clients, {drawn.dropout:.0%} gone")
    fewest = 3 * (clients // drawn.parameters.get("groups", 1)) // 4
    schedule = Schedule(
        rounds=1, cohort_size=clients, min_clients=fewest, collect_seconds=seconds, stage_seconds=seconds
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
            client.client_side = DrawnVectorSide(number, plan.layout)
        if drawn.in_step:
            fleet._run_all = Lockstep(server.url).run_all  # type: ignore[method-assign]
        done = measure_round(server, fleet)
        exact = _is_exact(fleet, {report.client_id for report in done.round.reports})
    each = {"server_ms_per_client": 1e3 * done.watch.cpu_seconds / done.round.survivors}
    return named(name, done.figures | each | {"exact": exact})


def _is_exact(fleet: Fleet, contributors: set[str]) -> bool:
    """Whether the released sum equals that of the contributors' fixed-point values, element by element."""
    first = fleet.clients[0]
    plan, task_id = first.member.terms.sum_plan, first.member.terms.task_id
    vectors = [
        DrawnVectorSide(number, plan.layout).vector
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
            total += plan.encode(route, [vector()])
        size = len(body) // plan.groups  # each sum of a group is behind its count
        parts = [
            np.frombuffer(body[-total.nbytes - size * at :][: total.nbytes], plan.dtype) for at in range(plan.groups)
        ]
        return bool((np.sum(parts, axis=0, dtype=plan.dtype) == total).all())
    assert isinstance(plan, OneshotPlan)
    whole = np.zeros(plan.layout.length, np.int64)
    for vector in vectors:
        whole += plan.encode(route, [vector()])
    opened = ONESHOT.open(plan, body, len(vectors), None)
    return all((opened[where] * fixed.scale == whole[where]).all() for fixed, where in plan.places[0])


# --- The commands

GONE: Final = 0.1
PARTS: Final = {"masked_round": ("memory", "cost", "groups"), "oneshot_round": ("masked", "size")}
MASKED: Final = DrawnRound("masked", 1_000, parameters={"bits": 32, "dropout": 0.15})
MASKED_ROUND: Final = DrawnRound("masked", 1_000, parameters={"bits": 32})
ONESHOT_ROUND: Final = DrawnRound("oneshot", 1_000)


def masked_round(options: argparse.Namespace) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    if "memory" in options.only:
        for name, usual in {"round200": 200, "round1000": 1_000}.items():
            clients, wait = (20, 12.0) if options.quick else (usual, max(20.0, 0.15 * usual))
            figures |= play(name, replace(MASKED_ROUND, clients=clients, dropout=0.05, stage_seconds=wait))
        figures["round1000.peak_rss_ratio"] = ratio(figures, "round1000.peak_rss_mib", "round200.peak_rss_mib")
    together = replace(MASKED_ROUND, items=1_000, in_step=True, stage_seconds=7_200.0)
    if "cost" in options.only:
        figures |= play("step1000", replace(together, clients=20 if options.quick else 1_000))
    if "groups" in options.only:
        parameters = {**together.parameters, "groups": 4}
        figures |= play("groups4", replace(together, clients=200 if options.quick else 4_000, parameters=parameters))
    return figures


def oneshot_round(options: argparse.Namespace) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    if "masked" in options.only:
        figures |= beside_masked(60, 10.0) if options.quick else beside_masked(1_000, 15.0)
    if "size" in options.only:
        for name, clients in zip(("round1k", "round10k"), (10, 20) if options.quick else (1_000, 10_000), strict=True):
            asked = replace(ONESHOT_ROUND, clients=clients, items=1_000, stage_seconds=3_600.0)
            figures |= play(name, asked)
        figures["round10k.peak_rss_ratio"] = ratio(figures, "round10k.peak_rss_mib", "round1k.peak_rss_mib")
    return figures


def beside_masked(clients: int, spare: float) -> dict[str, Figure]:
    """Figures of one round of each mechanism with nobody gone, and of one with 10 % gone.

    spare: seconds that a round with dropouts waits longer than its clients need.
    """
    figures: dict[str, Figure] = {}
    for gone in (0.0, GONE):
        for drawn in (MASKED, ONESHOT_ROUND):
            # A round with dropouts waits for its deadline, so the deadline is near the time that its clients need.
            needed = figures.get(f"{drawn.mechanism}.wall_s")
            deadline = 3_600.0 if needed is None else spare + 1.5 * float(needed)
            asked = replace(drawn, clients=clients, dropout=gone, stage_seconds=deadline)
            figures |= play(f"{drawn.mechanism}{'_gone' if gone else ''}", asked)
    figures["round1000.wall_ratio_masked"] = ratio(figures, "oneshot.wall_s", "masked.wall_s")
    figures["server_ratio_masked"] = ratio(figures, "oneshot_gone.server_cpu_s", "masked_gone.server_cpu_s")
    return figures


if __name__ == "__main__":
    measures = {"masked_round": masked_round, "oneshot_round": oneshot_round}
    script = next((word for word in sys.argv[1:] if word in measures), "masked_round")
    parser = arguments(__doc__, parts=PARTS[script])
    parser.add_argument("script", choices=measures)
    run(script, parser, measures[script])
