"""Server, workers, database and blob store are killed, stopped, paused, unmounted or full while clients upload."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.chaos.fault_runs import Cluster, FaultRun, fault_run, fold_workers, own_cluster, until
from tests.support.needs import required
from tests.support.server import AggregatorProcess, running_aggregator

pytestmark = pytest.mark.timeout(900)
SEED = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path / "data", fold_batch=2, test_spawns_workers=1) as running:
        yield running


def test_a_server_killed_at_any_moment(server: AggregatorProcess) -> None:
    choose = random.Random(SEED)
    with fault_run(server, SEED) as run:
        for _ in range(3):
            time.sleep(choose.uniform(0.05, 0.6))  # the seed determines the moment
            server.kill()
            assert run.status("/readyz") == 0
            server.start()
            assert run.status("/readyz") == 200
    assert run.ledger.broken
    # the restarts and the end of the task deleted all orphans
    kinds = {key.partition("/")[0] for key in server.blobs.keys()}  # noqa: SIM118 - a store, not a dict
    assert kinds <= {"aggregates", "snapshots"}


def test_a_fold_worker_killed_during_its_job(server: AggregatorProcess) -> None:
    with fault_run(server, SEED) as run:
        until("a worker", lambda: bool(fold_workers(server)))
        (worker,) = fold_workers(server)
        worker.suspend()
        until("a job", lambda: (run.figure("hushrec_engine_jobs") or 0) > 0)
        assert run.status("/readyz") == 200
        worker.kill()
        run.await_sums(1)
    assert not run.ledger.broken, "the death of a worker broke a client's connection"


SEED_OF_STORAGE = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_cluster() as made:
        yield made


def await_ready(run: FaultRun) -> None:
    """Wait until the server is ready, and clients have recovered."""
    until("/readyz to report it", lambda: run.status("/readyz") == 200)
    run.await_sums(1)


def test_a_database_that_crashes_or_hangs(cluster: Cluster, tmp_path: Path) -> None:
    with (
        running_aggregator(tmp_path / "data", database_url=cluster.schema(), fold_batch=2) as server,
        fault_run(server, SEED_OF_STORAGE) as run,
    ):
        cluster.crash()
        try:
            until("/readyz to report it", lambda: run.status("/readyz") == 503)
            assert run.figure("hushrec_database_up") == 0
            assert run.status("/healthz") == 200
            until("a client to be answered 503", lambda: run.ledger.statuses[503] > 0)
        finally:
            cluster.start_again()
        await_ready(run)
        assert run.figure("hushrec_database_up") == 1
        with cluster.paused():
            until("a request that hangs", lambda: run.status("/readyz") != 200)
            assert run.status("/healthz") == 200
        await_ready(run)


def test_a_blob_directory_that_is_unmounted(tmp_path: Path) -> None:
    """Requests for blobs are answered with 503; a sum that needs blobs waits."""
    with (
        running_aggregator(tmp_path / "data", blobs=f"dir:{tmp_path / 'blobs'}", fold_batch=2) as server,
        fault_run(server, SEED_OF_STORAGE) as run,
    ):
        (tmp_path / "blobs").rename(tmp_path / "away")
        until("/readyz to report it", lambda: run.status("/readyz") == 503)
        first_sum = f"{run.task.path}/rounds/1/aggregate"
        assert run.api.http.get(first_sum, headers=run.api.operator).status_code == 503
        (tmp_path / "away").rename(tmp_path / "blobs")
        await_ready(run)


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
            fault_run(server, SEED_OF_STORAGE, items=2000) as run,
        ):
            with (disk / "rubbish").open("wb", buffering=0) as rubbish, suppress(OSError):
                while True:
                    rubbish.write(bytes(4096))
            until("/readyz to report it", lambda: run.status("/readyz") == 503)
            (disk / "rubbish").unlink()
            await_ready(run)
