"""The server and its fold workers are killed with kill -9, many times, while clients upload."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.fault_runs import FaultRun, Kind, fault_run, fold_workers
from tests.chaos.swarm import until
from tests.support.server import AggregatorProcess, running_aggregator

pytestmark = pytest.mark.timeout(900)
SEED = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path / "data", fold_batch=2, test_spawns_workers=1) as running:
        yield running


@pytest.mark.parametrize(("kind", "restarts"), [("plain", 4), ("masked", 2)])
def test_a_server_killed_at_any_moment(server: AggregatorProcess, kind: Kind, restarts: int) -> None:
    choose = random.Random(SEED)
    with fault_run(server, kind, SEED) as run:
        for _ in range(restarts):
            time.sleep(choose.uniform(0.05, 0.6))  # the seed determines the moment
            server.kill()
            assert run.status("/readyz") == 0
            server.start()
            assert run.status("/readyz") == 200
    assert run.ledger.broken
    # the restarts and the end of the task deleted all orphans
    kinds = {key.partition("/")[0] for key in server.blobs.keys()}  # noqa: SIM118 - a store, not a dict
    assert kinds <= {"aggregates", "snapshots"}


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_fold_workers_killed_during_their_jobs(server: AggregatorProcess, kind: Kind) -> None:
    with fault_run(server, kind, SEED) as run:
        for _ in range(2):
            kill_at_work(run)
    assert run.ledger.broken == 0, "the death of a worker broke a client's connection"


def kill_at_work(run: FaultRun) -> None:
    """Kill a worker that is running a job."""
    until("a worker", lambda: bool(fold_workers(run.server)))
    (worker,) = fold_workers(run.server)
    worker.suspend()
    until("a job", lambda: (run.figure("hushrec_engine_jobs") or 0) > 0)
    assert run.status("/readyz") == 200
    worker.kill()
    run.await_sums(1)
