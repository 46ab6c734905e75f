"""What is wrong with a cluster is told in words: at the start of the server, and of every worker that comes later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from aggregator_service.compute.open_workers import open_workers
from aggregator_service.settings import Settings
from aggregator_service.storage.directory import DirectoryBlobs
from protocols.errors import ParameterError
from tests.support.api import Api
from tests.support.certificates import Authority
from tests.support.cluster import DaskCluster, running_cluster, wait_until
from tests.support.s3 import S3Server
from tests.support.server import AggregatorProcess, free_port, running_aggregator
from tests.support.sums import KeyedRound

pytestmark = pytest.mark.timeout(300)  # schedulers, workers and servers start, each a process with much to import


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    """A scheduler; the tests add workers."""
    with running_cluster(tmp_path / "cluster", workers=0) as running:
        yield running


def refusal(data_dir: Path, **settings: str) -> str:
    """What a server says that does not start."""
    server = AggregatorProcess(data_dir, **settings)
    try:
        server.launch()
        assert server.wait_dead(120) == 1
        assert "Traceback" not in server.log()
        return server.log()
    finally:
        server.stop()


def without_package(folder: Path) -> str:
    """A PYTHONPATH that hides this project."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['aggregator_service'] = None\n")
    return str(folder)


def of_version(folder: Path, version: str) -> str:
    """A PYTHONPATH that makes this project another version of itself."""
    info = folder / f"hushrec-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hushrec\nVersion: {version}\n")
    return str(folder)


@pytest.mark.parametrize("executor", ["dask", "dask://host", "dask:host:1", "tcp://host:8786", "dask://host:8786/x"])
def test_addresses_that_are_none(executor: str) -> None:
    with pytest.raises(ValidationError, match="executor"):
        Settings(executor=executor)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "aggregator_service.compute.dask_pool", None)
    with pytest.raises(ParameterError, match=r"pip install 'hushrec\[cluster\]'"):
        open_workers("dask://127.0.0.1:8786", 1, DirectoryBlobs(tmp_path))


def test_a_scheduler_that_does_not_answer(tmp_path: Path) -> None:
    port = free_port()
    said = refusal(tmp_path / "data", executor=f"dask://127.0.0.1:{port}")
    assert f"the Dask scheduler at tcp://127.0.0.1:{port} does not answer" in said


def test_workers_without_the_project_or_with_another_version(bare_cluster: DaskCluster, tmp_path: Path) -> None:
    """A server does not start on them; one that fits is enough, and gets all the work."""
    bare_cluster.start_worker(PYTHONPATH=without_package(tmp_path / "without"))
    said = refusal(tmp_path / "first", executor=bare_cluster.executor)
    assert "has no hushrec that it can use" in said
    assert "pip install 'hushrec[cluster]==" in said
    bare_cluster.workers[0].kill()
    bare_cluster.start_worker(PYTHONPATH=of_version(tmp_path / "other", "0.0.1"))
    assert "has hushrec 0.0.1, and this server is" in refusal(tmp_path / "second", executor=bare_cluster.executor)
    bare_cluster.start_worker()
    with running_aggregator(tmp_path / "third", executor=bare_cluster.executor, split_bytes=1) as server:
        api = Api(server.url, server.operator_token)
        assert api.http.get("/readyz").json() == {"status": "ready", "executor": "unfit workers: 1"}
        round_ = KeyedRound(api, "plain")
        round_.contribute()
        round_.assert_exact()
        api.close()


def test_workers_that_cannot_open_the_blobs(
    bare_cluster: DaskCluster, s3: S3Server, tmp_path: Path, new_prefix: Callable[[], str]
) -> None:
    """S3 credentials are never in a job: a worker has its own."""
    bare_cluster.start_worker()
    said = refusal(tmp_path / "first", executor=bare_cluster.executor, blobs=new_prefix())
    assert "cannot use the blobs" in said
    assert "credentials for the bucket" in said
    bare_cluster.workers[0].kill()
    bare_cluster.start_worker(**s3.environment)
    with running_aggregator(tmp_path / "second", executor=bare_cluster.executor, blobs=new_prefix()) as server:
        api = Api(server.url, server.operator_token)
        round_ = KeyedRound(api, "plain")
        round_.contribute()
        round_.assert_exact()
        api.close()


def test_a_cluster_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduler, workers and server each show a certificate; a server without one is not let in."""
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
        with running_aggregator(tmp_path / "second", executor=cluster.executor) as server:
            api = Api(server.url, server.operator_token)
            round_ = KeyedRound(api, "plain")
            round_.contribute()
            round_.assert_exact()
            api.close()


def test_a_worker_that_comes_late_is_looked_at(bare_cluster: DaskCluster, tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data", executor=bare_cluster.executor) as server:
        api = Api(server.url, server.operator_token)
        assert api.http.get("/readyz").json()["executor"] == "waiting for workers"
        bare_cluster.start_worker(PYTHONPATH=of_version(tmp_path / "other", "0.0.1"))
        wait_until("readiness that tells", lambda: api.http.get("/readyz").status_code == 503)
        assert "has hushrec 0.0.1" in server.log()
        api.close()
