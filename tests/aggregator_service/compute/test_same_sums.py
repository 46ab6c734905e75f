"""Clusters give the same sums as one process, and jobs need the memory of few vectors."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_service.compute.jobs import BlobRef, FoldJob, ReleaseJob, StoredBody, fold_batch, release_sum
from aggregator_service.storage.blobs import forget_pages, map_open_file, tag_of
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import plan_task, task_terms
from protocols.messages import Schedule
from tests.support.api import Api
from tests.support.cluster import DaskCluster, running_cluster
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.measured import peak_of
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.sums import COHORT, KeyedRound

MASKED_CLIENTS = 6
pytestmark = pytest.mark.timeout(600)  # schedulers, workers and servers start, each a process with much to import


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler and two workers."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module", params=["local", "dask"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """Splits every job that can be split. A round takes two folds, so that the second one starts from a partial sum:
    slow contributions are folded early, and of the others there are twice as many."""
    how = {"workers": 2} if request.param == "local" else {"executor": request.getfixturevalue("cluster").executor}
    data_dir = tmp_path_factory.mktemp(request.param) / "data"
    with running_aggregator(data_dir, split_bytes=1, fold_batch=COHORT // 2, log_level="debug", **how) as running:
        yield running


def splits(server: AggregatorProcess, what: str) -> int:
    return server.log().count(f"{what} split")


def test_a_batch_over_two_workers(server: AggregatorProcess, api: Api, request: pytest.FixtureRequest) -> None:
    """Afterwards the store holds one aggregate and one state per task, and no part."""
    sums = {"ckks": COHORT, "plain": 2 * COHORT} if "dask" in request.node.name else {"paillier": COHORT}
    for mechanism_name, cohort in sums.items():
        before = splits(server, "batch")
        round_ = KeyedRound(api, mechanism_name, f"{mechanism_name}-sums", cohort)
        round_.contribute()
        round_.assert_exact()
        assert splits(server, "batch") > before
    wait_until(lambda: server.kinds().keys() <= {"aggregates", "snapshots", "envelopes"}, "all parts are deleted")


def test_masks_over_two_workers(server: AggregatorProcess, api: Api) -> None:
    before = splits(server, "masks")
    task = masked_task(api, "masked", MASKED_CLIENTS)
    play(task, enrol_masked(task, MASKED_CLIENTS), drop={4: "contribute", 5: "contribute"})
    task.assert_sum(1, (2.0**index for index in range(MASKED_CLIENTS - 2)))
    assert splits(server, "masks") > before


def test_the_logs_of_the_cluster_contain_no_secrets(cluster: DaskCluster) -> None:
    """Jobs contain secret shares and blob keys; Dask prints only the names of jobs."""
    for worker in cluster.workers:
        assert "Masks(" not in worker.log()
        assert "Traceback" not in worker.log()


VALUES = 1_000_000


@pytest.mark.parametrize(
    ("mechanism", "fold", "release"), [("plain", 2.5, 4.5), ("masked", 1.5, 4.5), ("oneshot", 1.5, 0)]
)
def test_jobs_need_few_vectors(tmp_path: Path, mechanism: str, fold: float, release: float) -> None:
    blobs = DirectoryBlobs(tmp_path)
    blobs.prepare()
    terms = task_terms("arrays", {"shapes": {"a": [VALUES]}}, mechanism, {}, Schedule(cohort_size=9, min_clients=3))
    task = plan_task(terms)
    spec = task.recipe.round_spec(bytes(32), 1)
    body, sent = bytes(task.contribution_bytes(spec, "c")), []
    for number in range(3):
        key = f"contributions/t-{number}"
        blobs.put(key, body)
        sent.append((f"c{number}", StoredBody(key, tag_of(body))))
    partial: BlobRef | None = None
    for _ in range(2):  # the second batch is added to the partial sum of the first
        job = FoldJob(blobs, "t", terms, spec, partial, tuple(sent))
        partial, used = peak_of(lambda job=job: fold_batch(job))
        assert used < fold * 4 * VALUES
    if release:
        done = ReleaseJob(blobs, "t", terms, spec, bytes(32), partial, 6, None, absorb=True, state=None)
        released, used = peak_of(lambda: release_sum(done))
        assert used < release * 4 * VALUES
        assert released.state is not None and released.state.bytes == 4 * VALUES


def test_forgotten_pages_are_read_again_and_other_memory_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(bytes(range(256)) * 4096)
    with path.open("rb") as file:
        view = map_open_file(file)
    before = bytes(view)
    forget_pages(view[5:])
    assert view == before
    anonymous = mmap.mmap(-1, 4096)
    anonymous.write(b"kept")
    forget_pages(memoryview(anonymous))
    assert anonymous[:4] == b"kept"
    forget_pages(b"bytes")
    forget_pages(None)
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open("rb") as file:
        assert map_open_file(file) == b""


NEEDLESS = ("anyio", "fastapi", "httpx", "prometheus_client", "scipy", "sqlalchemy", "starlette", "tenseal")


def test_jobs_need_neither_the_database_nor_http() -> None:
    """Each package that a worker imports without need delays the first fold."""
    program = (
        f"import aggregator_service.compute.jobs, sys; print([name for name in {NEEDLESS} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
