"""An operator extends and aborts rounds through the SDK, on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from client_sdk import Operator
from client_sdk.errors import Conflict, InvalidParameters, NotFound
from tests.support.api import Api, TestTask
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import small_task


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("interventions") / "data") as running:
        yield running


def test_an_operator_extends_and_aborts_a_round(server: AggregatorProcess) -> None:
    with Operator(server.url, server.operator_token) as operator:
        task_id = small_task(operator, "intervened", users=3, collect_seconds=3600.0).task_id
        api = Api(server.url, server.operator_token)
        TestTask(api, api.http.get(f"/v1/tasks/{task_id}", headers=api.operator).json()).enrol(3)
        api.close()
        end = time.monotonic() + 30
        while not list(operator.rounds(task_id)) and time.monotonic() < end:
            time.sleep(0.05)
        left = operator.extend_round(task_id, 1, 600).seconds_left
        assert left is not None
        assert 4000 < left <= 4200
        with pytest.raises(InvalidParameters, match="can be extended by"):
            operator.extend_round(task_id, 1, 604_800)
        with pytest.raises(ValueError, match="greater than 0"):
            operator.extend_round(task_id, 1, -1)
        with pytest.raises(NotFound):
            operator.abort_round(task_id, 9)
        aborted = operator.abort_round(task_id, 1)
        assert (aborted.state, aborted.failure) == ("failed", "aborted by an operator")
        assert operator.abort_round(task_id, 1) == aborted
        with pytest.raises(Conflict):
            operator.extend_round(task_id, 1, 5)
        assert operator.task(task_id).state == "open"
