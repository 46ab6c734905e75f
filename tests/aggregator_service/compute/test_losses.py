"""A worker killed during a job, all workers gone, the scheduler gone: the sum is late, and exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.cluster import DaskCluster, running_cluster, wait_until
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.server import AggregatorProcess, Persistent
from tests.support.sums import COHORT, KeyedRound

pytestmark = pytest.mark.timeout(600)  # schedulers, workers and servers start, each a process with much to import


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    """A scheduler; each test has its own workers."""
    with running_cluster(tmp_path / "cluster", workers=0) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, cluster: DaskCluster) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(
        tmp_path / "data", executor=cluster.executor, split_bytes=1, fold_batch=COHORT // 2, log_level="debug"
    )
    yield process
    process.stop()


@pytest.mark.parametrize("mechanism_name", ["plain", "ckks"])
def test_a_worker_killed_in_the_middle_of_a_fold(
    cluster: DaskCluster, server: AggregatorProcess, api: Api, mechanism_name: str
) -> None:
    """It dies after it added one contribution of its part; the other worker runs the part again."""
    victim, _ = cluster.start_worker(crash_at="worker.folding"), cluster.start_worker()
    server.start()
    round_ = KeyedRound(api, mechanism_name)
    round_.contribute()
    victim.wait_killed()
    round_.assert_exact()
    assert "batch split" in server.log()


def test_a_worker_killed_in_the_middle_of_unmasking(cluster: DaskCluster, server: AggregatorProcess, api: Api) -> None:
    victim, _ = cluster.start_worker(crash_at="worker.unmasking"), cluster.start_worker()
    server.start()
    task = masked_task(api, "masks", 8)
    play(server, task, enrol_masked(task, 8), drop={7: "contribute"})
    victim.wait_killed()
    assert task.wait_round(1, "complete", "failed", seconds=60)["survivors"] == 7
    total = task.opened(1)
    counts = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[counts], np.full(counts.sum(), 7.0))
    assert np.allclose(total[~counts], 2.0**7 - 1, rtol=0, atol=task.plan.predicted_error)
    assert "masks split" in server.log()


def test_all_workers_die_and_another_one_connects(cluster: DaskCluster, server: AggregatorProcess, api: Api) -> None:
    """Without workers the server takes contributions and reports what it waits for; it continues with a new worker."""
    victims = [cluster.start_worker(crash_at="worker.folding") for _ in range(2)]
    server.start()
    round_ = KeyedRound(api, "plain")
    round_.contribute()
    for worker in victims:
        worker.wait_killed()
    waiting = {"status": "ready", "executor": "waiting for workers"}
    wait_until("the server waits for workers", lambda: api.http.get("/readyz").json() == waiting)
    assert round_.task.round(1)["folded"] == 0
    cluster.start_worker()
    round_.assert_exact()
    wait_until("the server is ready", lambda: api.http.get("/readyz").json() == {"status": "ready"})


def test_the_scheduler_dies_and_starts_again(cluster: DaskCluster, server: AggregatorProcess, api: Api) -> None:
    """Dask's workers exit with their scheduler. Contributions are taken meanwhile, and none is lost."""
    cluster.start_worker()
    server.start()
    round_ = KeyedRound(api, "plain")
    round_.contribute(last=COHORT // 2)  # a first fold
    wait_until("a first fold", lambda: round_.task.round(1)["folded"] == COHORT // 2)
    cluster.kill_scheduler()
    wait_until("the server is not ready", lambda: api.http.get("/readyz").status_code == 503)
    assert api.http.get("/readyz").json()["detail"] == "the executor does not work"
    round_.contribute(first=COHORT // 2)
    wait_until("a fold waits", lambda: "cannot run a job: the Dask scheduler" in server.log())
    cluster.start_scheduler()
    cluster.start_worker()
    round_.assert_exact()


@pytest.mark.parametrize("point", ["parts.folded-before-merge", "parts.unmasked-before-release"])
def test_the_server_dies_between_the_parts_and_the_sum(
    cluster: DaskCluster, server: AggregatorProcess, api: Api, point: str
) -> None:
    """The blobs of the parts are deleted at the next start, and the parts are made again."""
    for _ in range(2):
        cluster.start_worker()
    server.start(crash_at=point)
    attempt = Persistent(server)
    if point.startswith("parts.folded"):
        round_ = KeyedRound(api, "plain")
        round_.contribute()
        attempt.revive()
        round_.assert_exact()
    else:
        task = masked_task(api, "masks", 8)
        play(server, task, enrol_masked(task, 8))
        attempt.revive()
        assert task.wait_round(1, "complete", "failed", seconds=60)["survivors"] == 8

    def kinds() -> list[str]:
        return sorted(key.partition("/")[0] for key in server.blobs.keys())  # noqa: SIM118 - a store, not a dict

    # the round is complete a moment before its blobs are deleted
    wait_until("all parts are deleted", lambda: kinds() == ["aggregates", "snapshots"])
