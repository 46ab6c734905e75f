"""The server and its fold workers are killed with kill -9, many times, while clients upload."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.storms import Kind, Storm, fold_workers, storm
from tests.chaos.swarm import until
from tests.support.server import AggregatorProcess, running_aggregator

pytestmark = pytest.mark.timeout(900)
SEED = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path / "data", fold_batch=2) as running:
        yield running


@pytest.mark.parametrize(("kind", "deaths"), [("plain", 4), ("masked", 3)])
def test_a_server_killed_at_any_moment(server: AggregatorProcess, kind: Kind, deaths: int) -> None:
    choose = random.Random(SEED)
    with storm(server, kind, SEED) as under_way:
        for _ in range(deaths):
            time.sleep(choose.uniform(0.05, 0.6))  # the seed determines the moment
            server.kill()
            assert under_way.status("/readyz") == 0
            server.start()
            assert under_way.status("/readyz") == 200
    assert under_way.ledger.broken
    # the restarts and the end of the task deleted all orphans
    kinds = {key.partition("/")[0] for key in server.blobs.keys()}  # noqa: SIM118 - a store, not a dict
    assert kinds <= {"aggregates", "snapshots"}


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_fold_workers_killed_during_their_jobs(server: AggregatorProcess, kind: Kind) -> None:
    with storm(server, kind, SEED) as under_way:
        for _ in range(4):
            kill_at_work(under_way)
    assert under_way.ledger.broken == 0, "the death of a worker broke a client's connection"


def kill_at_work(under_way: Storm) -> None:
    """Kill a worker that is running a job."""
    until("a worker", lambda: bool(fold_workers(under_way.server)))
    (worker,) = fold_workers(under_way.server)
    worker.suspend()
    until("a job", lambda: (under_way.figure("hushrec_engine_jobs") or 0) > 0)
    assert under_way.status("/readyz") == 200
    worker.kill()
    under_way.await_sums(1)
