"""Unfit clusters and workers are refused with a clear message; lost workers, schedulers and servers lose no sum."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from pydantic import ValidationError

from aggregator_service.app import open_workers
from aggregator_service.settings import Settings
from aggregator_service.storage.directory import DirectoryBlobs
from protocols.errors import ParameterError
from tests.support.api import Api, serving
from tests.support.cluster import DaskCluster, running_cluster
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.replicas import wait_until
from tests.support.s3 import S3Server
from tests.support.server import AggregatorProcess, Authority, Persistent, free_port
from tests.support.signing import SIGNED
from tests.support.sums import COHORT, KeyedRound

MASKED_CLIENTS = 6
pytestmark = pytest.mark.timeout(600)  # schedulers, workers and servers start, each a process with much to import


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    """A scheduler; the tests add workers."""
    with running_cluster(tmp_path / "cluster", workers=0) as running:
        yield running


def refusal(data_dir: Path, **settings: str) -> str:
    """Start a server that must exit with status 1; return its log."""
    server = AggregatorProcess(data_dir, **settings)
    server.launch()
    assert server.wait_dead(120) == 1
    assert "Traceback" not in server.log()
    return server.log()


def without_package(folder: Path) -> str:
    """Return a PYTHONPATH with which this project is not installed."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys, importlib.metadata as metadata\n"
        "found = metadata.version\n"
        "def version(name):\n"
        "    if name == 'hushrec':\n        raise metadata.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "version.__module__, version.__qualname__ = 'importlib.metadata', 'version'\n"
        "metadata.version = version\nsys.modules['aggregator_service'] = None\n"
    )
    return str(folder)


def of_version(folder: Path, version: str) -> str:
    """Return a PYTHONPATH with which this project has another version."""
    info = folder / f"hushrec-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hushrec\nVersion: {version}\n")
    return str(folder)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "aggregator_service.compute.cluster", None)
    with pytest.raises(ParameterError, match="the extra `cluster`, which is not installed: hushrec doctor"):
        open_workers("dask://127.0.0.1:8786", 1, DirectoryBlobs(tmp_path))


def test_a_server_does_not_start_without_its_scheduler(tmp_path: Path) -> None:
    port = free_port()
    said = refusal(tmp_path / "data", executor=f"dask://127.0.0.1:{port}")
    assert f"the Dask scheduler at tcp://127.0.0.1:{port} does not answer" in said


def sum_exactly(api: Api) -> None:
    round_ = KeyedRound(api, "plain", cohort=4)
    round_.contribute()
    round_.assert_exact()


def test_workers_without_the_project_its_version_or_the_blob_store_are_refused(
    bare_cluster: DaskCluster, s3: S3Server, tmp_path: Path, new_prefix: Callable[[], str]
) -> None:
    """A server does not start with unfit workers only, nor is it ready. One fit worker is enough, and gets all jobs.

    S3 credentials are never part of a job: each worker has its own.
    """
    shared = {"executor": bare_cluster.executor, "blobs": new_prefix()}
    bare_cluster.start_worker()
    said = refusal(tmp_path / "first", **shared)
    assert "cannot use the blob store" in said
    assert "credentials for the bucket" in said
    bare_cluster.workers[0].kill()
    with serving(tmp_path / "second", split_bytes=1, **shared) as (server, api):
        assert api.found("/readyz")["executor"] == "waiting for workers"
        bare_cluster.start_worker(PYTHONPATH=without_package(tmp_path / "without"))
        wait_until(lambda: api.http.get("/readyz").status_code == 503, "the server is not ready")
        assert "has no hushrec: install HushRec" in server.log()
        assert f"install HushRec {metadata.version('hushrec')} there as on the server" in server.log()
        bare_cluster.start_worker(PYTHONPATH=of_version(tmp_path / "other", "0.0.1"))
        bare_cluster.start_worker(**s3.environment)
        expected = {"status": "ready", "executor": "unfit workers: 2"}
        wait_until(lambda: api.http.get("/readyz").json() == expected, "two workers are unfit")
        assert "has hushrec 0.0.1, and this server is" in server.log()
        sum_exactly(api)


def test_a_cluster_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduler, workers and server authenticate with certificates; a server without one does not start."""
    authority = Authority(tmp_path)
    pair = authority.sign("cluster", server=True, client=True)
    environment = {"DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(authority.certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        environment[f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT"] = str(pair.certificate)
        environment[f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY"] = str(pair.key)
    with running_cluster(tmp_path / "cluster", 1, "tls", environment) as cluster:
        assert "no TLS to the Dask scheduler" in refusal(tmp_path / "first", executor=cluster.executor)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with serving(tmp_path / "second", executor=cluster.executor) as (server, api):
            sum_exactly(api)


def test_a_cluster_on_another_machine_needs_tls() -> None:
    for executor in ("dask://10.0.0.5:8786", "dask://scheduler:8786", "dask://[2001:db8::1]:8786"):
        with pytest.raises(ValidationError, match=r"dask\+tls://"):
            Settings(executor=executor)
        assert Settings(executor=executor, allow_plain_dask=True).executor == executor
    for executor in ("127.0.0.1", "[::1]", "localhost"):
        assert Settings(executor=f"dask://{executor}:8786")


@pytest.fixture
def server(tmp_path: Path, bare_cluster: DaskCluster) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(
        tmp_path / "data", executor=bare_cluster.executor, split_bytes=1, fold_batch=COHORT // 2, log_level="debug"
    )
    yield process
    process.stop()


def test_workers_killed_at_work(bare_cluster: DaskCluster, server: AggregatorProcess, api: Api) -> None:
    """All die while they fold, after they added one contribution of their parts. The server takes contributions and
    reports what it waits for, and continues with new workers. Then one of two dies: the other one runs its part again.
    """
    victims = [bare_cluster.start_worker(crash_at="worker.folding") for _ in range(2)]
    server.start()
    round_ = KeyedRound(api, "plain")
    round_.contribute()
    for worker in victims:
        worker.wait_killed()
    waiting = {"status": "ready", "executor": "waiting for workers"}
    wait_until(lambda: api.http.get("/readyz").json() == waiting, "the server waits for workers")
    scraped = api.http.get("/metrics", headers=api.operator).text
    assert "hushrec_executor_up 1.0" in scraped and "hushrec_executor_ready 0.0" in scraped
    assert round_.task.round(1)["folded"] == 0
    victim = bare_cluster.start_worker(crash_at="worker.unmasking")
    bare_cluster.start_worker()
    round_.assert_exact()
    wait_until(lambda: api.http.get("/readyz").json() == {"status": "ready"}, "the server is ready")
    task = masked_task(api, "masks", MASKED_CLIENTS)
    play(task, enrol_masked(task, MASKED_CLIENTS), drop={5: "contribute"})
    victim.wait_killed()
    task.assert_sum(1, (2.0**index for index in range(MASKED_CLIENTS - 1)))
    assert "batch split" in server.log() and "masks split" in server.log()


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


def test_the_server_dies_between_the_parts_and_the_sum(bare_cluster: DaskCluster, server: AggregatorProcess) -> None:
    """The blobs of the parts are deleted at the next start, and the parts are made again."""
    for _ in range(2):
        bare_cluster.start_worker()
    server.start(crash_at="parts.folded-before-merge")
    with Persistent(server, ["parts.unmasked-before-release"], auth=SIGNED) as http:
        api = Api.of(server, http)
        round_ = KeyedRound(api, "plain")
        round_.contribute()
        round_.assert_exact()
        task = masked_task(api, "masks", MASKED_CLIENTS)
        play(task, enrol_masked(task, MASKED_CLIENTS))
        task.assert_sum(1, (2.0**index for index in range(MASKED_CLIENTS)))
        assert http.deaths == 2
        # the rounds are complete a moment before their blobs are deleted
        wait_until(lambda: server.kinds() == {"aggregates": 2, "snapshots": 2}, "all parts are deleted")
