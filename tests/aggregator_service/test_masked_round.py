"""Masked rounds end to end against a real server process: exact sums, dropouts in every stage, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.api import Api, TestTask
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.server import AggregatorProcess, running_aggregator

COHORT = 8
SILENT = {"stage_seconds": 1.5, "collect_seconds": 1.5}
"""Deadlines of rounds in which somebody drops out: long enough for those who stay."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    data_dir: Path = tmp_path_factory.mktemp("aggregator") / "data"
    with running_aggregator(data_dir, fold_batch=3) as running:
        yield running


@pytest.fixture
def api(server: AggregatorProcess) -> Iterator[Api]:
    client = Api(server.url, server.operator_token)
    yield client
    client.close()


def assert_sum(task: TestTask, number: int, survivors: list[int]) -> None:
    """The released sum is that of 2^index over the survivors, within the plan's error."""
    assert task.round(number)["survivors"] == len(survivors)
    total = task.opened(number)
    mask = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[mask], np.full(mask.sum(), float(len(survivors))))
    assert np.allclose(total[~mask], sum(2.0**index for index in survivors), atol=task.plan.predicted_error)


@pytest.mark.parametrize("mode", ["semi-malicious", "curious"])
def test_two_rounds_with_everybody(api: Api, mode: str) -> None:
    task = masked_task(api, f"all-{mode}", COHORT, mode, rounds=2)
    clients = enrol_masked(task, COHORT)
    for number in (1, 2):
        play(task, clients, number)
        task.wait_round(number, "complete")
        assert_sum(task, number, list(range(COHORT)))
    assert api.http.get(task.path, headers=api.operator).json()["state"] == "complete"
