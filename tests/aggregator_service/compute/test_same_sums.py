"""Several workers compute bit for bit the sum that one computes: local processes, and a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.cluster import DaskCluster, wait_until
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.sums import COHORT, PARAMETERS, KeyedRound

MASKED_CLIENTS = 8
pytestmark = pytest.mark.timeout(600)  # schedulers, workers and servers start, each a process with much to import


@pytest.fixture(scope="module", params=["local", "dask"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """Splits every job that can be split. A round takes two folds, so that the second one starts from a partial sum."""
    how = {"workers": 2} if request.param == "local" else {"executor": request.getfixturevalue("cluster").executor}
    data_dir = tmp_path_factory.mktemp(request.param) / "data"
    with running_aggregator(data_dir, split_bytes=1, fold_batch=COHORT // 4, log_level="debug", **how) as running:
        yield running


def splits(server: AggregatorProcess, what: str) -> int:
    return server.log().count(f"{what} split")


@pytest.mark.parametrize("mechanism_name", PARAMETERS)
def test_a_batch_over_two_workers(server: AggregatorProcess, api: Api, mechanism_name: str) -> None:
    before = splits(server, "batch")
    round_ = KeyedRound(api, mechanism_name, f"{mechanism_name}-sums")
    round_.contribute()
    round_.assert_exact()
    assert splits(server, "batch") > before


@pytest.mark.parametrize("drop", [{}, {6: "contribute", 7: "contribute"}], ids=["all stay", "two leave"])
def test_masks_over_two_workers(server: AggregatorProcess, api: Api, drop: dict[int, str]) -> None:
    before = splits(server, "masks")
    task = masked_task(api, f"masked-{len(drop)}", MASKED_CLIENTS)
    clients = enrol_masked(task, MASKED_CLIENTS)
    play(server, task, clients, drop=drop)  # type: ignore[arg-type]
    stayed = MASKED_CLIENTS - len(drop)
    assert task.wait_round(1, "complete", "failed", seconds=60)["survivors"] == stayed
    total = task.opened(1)
    counts = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[counts], np.full(counts.sum(), float(stayed)))
    assert np.allclose(total[~counts], 2.0**stayed - 1, rtol=0, atol=task.plan.predicted_error)
    assert splits(server, "masks") > before


def test_the_blobs_of_parts_are_deleted(server: AggregatorProcess, api: Api) -> None:
    """After the tests above, the store holds one aggregate and one state per task, and no part."""
    round_ = KeyedRound(api, "plain", "leftovers")
    round_.contribute()
    round_.assert_exact()

    def kinds() -> set[str]:
        return {key.partition("/")[0] for key in server.blobs.keys()}  # noqa: SIM118 - a store, not a dict

    wait_until("all parts are deleted", lambda: kinds() <= {"aggregates", "snapshots", "envelopes"})


def test_the_logs_of_the_cluster_contain_no_secrets(cluster: DaskCluster) -> None:
    """Jobs contain secret shares and blob keys; Dask prints only the names of jobs."""
    for worker in cluster.workers:
        assert "SomeMasks" not in worker.log()
        assert "Traceback" not in worker.log()
