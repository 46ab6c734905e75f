"""A worker killed during a job, all workers gone, the scheduler gone: the sum is late, and exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api
from tests.support.cluster import DaskCluster
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, Persistent
from tests.support.sums import COHORT, KeyedRound

pytestmark = pytest.mark.timeout(600)  # schedulers, workers and servers start, each a process with much to import


@pytest.fixture
def server(tmp_path: Path, bare_cluster: DaskCluster) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(
        tmp_path / "data", executor=bare_cluster.executor, split_bytes=1, fold_batch=COHORT // 2, log_level="debug"
    )
    yield process
    process.stop()


def test_workers_killed_in_the_middle_of_a_fold_and_of_unmasking(
    bare_cluster: DaskCluster, server: AggregatorProcess, api: Api
) -> None:
    """One dies after it added one contribution of its part, the other one later; the rest run their parts again."""
    victims = [bare_cluster.start_worker(crash_at=f"worker.{job}") for job in ("folding", "unmasking")]
    bare_cluster.start_worker()
    server.start()
    round_ = KeyedRound(api, "plain")
    round_.contribute()
    victims[0].wait_killed()
    round_.assert_exact()
    task = masked_task(api, "masks", 8)
    play(server, task, enrol_masked(task, 8), drop={7: "contribute"})
    victims[1].wait_killed()
    task.assert_sum(1, (2.0**index for index in range(7)))
    assert "batch split" in server.log() and "masks split" in server.log()


def test_all_workers_die_and_another_one_connects(
    bare_cluster: DaskCluster, server: AggregatorProcess, api: Api
) -> None:
    """Without workers the server takes contributions and reports what it waits for; it continues with a new worker."""
    victims = [bare_cluster.start_worker(crash_at="worker.folding") for _ in range(2)]
    server.start()
    round_ = KeyedRound(api, "plain")
    round_.contribute()
    for worker in victims:
        worker.wait_killed()
    waiting = {"status": "ready", "executor": "waiting for workers"}
    wait_until(lambda: api.http.get("/readyz").json() == waiting, "the server waits for workers")
    assert round_.task.round(1)["folded"] == 0
    bare_cluster.start_worker()
    round_.assert_exact()
    wait_until(lambda: api.http.get("/readyz").json() == {"status": "ready"}, "the server is ready")


def test_the_scheduler_dies_and_starts_again(bare_cluster: DaskCluster, server: AggregatorProcess, api: Api) -> None:
    """Dask's workers exit with their scheduler. Contributions are taken meanwhile, and none is lost."""
    bare_cluster.start_worker()
    server.start()
    round_ = KeyedRound(api, "plain")
    round_.contribute(last=COHORT // 2)  # a first fold
    wait_until(lambda: round_.task.round(1)["folded"] == COHORT // 2, "a first fold")
    bare_cluster.kill_scheduler()
    wait_until(lambda: api.http.get("/readyz").status_code == 503, "the server is not ready")
    assert api.http.get("/readyz").json()["detail"] == "the executor does not work"
    round_.contribute(first=COHORT // 2)
    wait_until(lambda: "cannot run a job: the Dask scheduler" in server.log(), "a fold waits")
    bare_cluster.start_scheduler()
    bare_cluster.start_worker()
    round_.assert_exact()


def test_the_server_dies_between_the_parts_and_the_sum(
    bare_cluster: DaskCluster, server: AggregatorProcess, api: Api
) -> None:
    """The blobs of the parts are deleted at the next start, and the parts are made again."""
    for _ in range(2):
        bare_cluster.start_worker()
    server.start(crash_at="parts.folded-before-merge")
    attempt = Persistent(server, ["parts.unmasked-before-release"])
    round_ = KeyedRound(api, "plain")
    round_.contribute()
    attempt.revive()
    round_.assert_exact()
    task = masked_task(api, "masks", 8)
    play(server, task, enrol_masked(task, 8))
    attempt.revive()
    task.assert_sum(1, (2.0**index for index in range(8)))
    # the rounds are complete a moment before their blobs are deleted
    wait_until(lambda: server.kinds() == {"aggregates": 2, "snapshots": 2}, "all parts are deleted")
