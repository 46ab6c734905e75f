"""Server, workers, database and blob store are killed, stopped, paused, unmounted or full while clients upload."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.fault_runs import Cluster, FaultRun, Kind, fault_run, fold_workers, own_cluster
from tests.chaos.swarm import until
from tests.support.needs import required
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


SEED_OF_STORAGE = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_cluster() as made:
        yield made


@pytest.fixture
def far(cluster: Cluster, tmp_path: Path) -> Iterator[AggregatorProcess]:
    """A server on the database of the cluster."""
    with running_aggregator(tmp_path / "data", database_url=cluster.schema(), fold_batch=2) as running:
        yield running


@pytest.mark.parametrize(("kind", "times"), [("plain", 2), ("masked", 1)])
def test_a_database_that_crashes_and_restarts(cluster: Cluster, far: AggregatorProcess, kind: Kind, times: int) -> None:
    with fault_run(far, kind, SEED_OF_STORAGE) as run:
        for _ in range(times):
            cluster.crash()
            try:
                until("/readyz to report it", lambda: run.status("/readyz") == 503)
                assert run.figure("hushrec_database_up") == 0
                assert run.status("/healthz") == 200
                until("a client to be answered 503", lambda: run.ledger.statuses[503] > 0)
            finally:
                cluster.start_again()
            until("/readyz to report it", lambda: run.status("/readyz") == 200)
            assert run.figure("hushrec_database_up") == 1
            run.await_sums(1)


def test_a_database_that_hangs(cluster: Cluster, far: AggregatorProcess) -> None:
    with fault_run(far, "plain", SEED_OF_STORAGE) as run:
        with cluster.paused():
            until("a request that hangs", lambda: run.status("/readyz") != 200)
            assert run.status("/healthz") == 200
        until("/readyz to report it", lambda: run.status("/readyz") == 200)
        run.await_sums(2)


@pytest.mark.parametrize(("kind", "times"), [("plain", 2), ("masked", 1)])
def test_a_blob_directory_that_is_unmounted(tmp_path: Path, kind: Kind, times: int) -> None:
    with (
        running_aggregator(tmp_path / "data", blobs=f"dir:{tmp_path / 'blobs'}", fold_batch=2) as server,
        fault_run(server, kind, SEED_OF_STORAGE) as run,
    ):
        for _ in range(times):
            (tmp_path / "blobs").rename(tmp_path / "away")
            assert_store_unavailable(run)
            (tmp_path / "away").rename(tmp_path / "blobs")
            until("/readyz to report it", lambda: run.status("/readyz") == 200)
            run.await_sums(1)


def assert_store_unavailable(run: FaultRun) -> None:
    """Requests for blobs are answered with 503; a sum that needs blobs waits."""
    until("/readyz to report it", lambda: run.status("/readyz") == 503)
    sum_of_one = f"{run.task.path}/rounds/1/aggregate"
    assert run.api.http.get(sum_of_one, headers=run.api.operator).status_code == 503


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A mounted file system of 24 MB."""
    folder.mkdir()
    subprocess.run([required("mount"), "-t", "tmpfs", "-o", "size=24m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_blob_disk_that_fills_up(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk:
        where = f"dir:{disk / 'blobs'}"
        with (
            running_aggregator(tmp_path / "data", blobs=where, fold_batch=2) as server,
            fault_run(server, "plain", SEED_OF_STORAGE, items=2000) as run,
        ):
            for _ in range(2):
                fill(disk / "rubbish")
                until("/readyz to report it", lambda: run.status("/readyz") == 503)
                (disk / "rubbish").unlink()
                until("/readyz to report it", lambda: run.status("/readyz") == 200)
                run.await_sums(1)


def fill(file: Path) -> None:
    """Fill the file system."""
    with file.open("wb", buffering=0) as rubbish:
        try:
            while True:
                rubbish.write(bytes(4096))
        except OSError:
            return
