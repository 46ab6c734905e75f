"""Servers on PostgreSQL and S3, killed or two at a time: the sum is exact and no orphan is left."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest

from aggregator_service.storage.cleanup import collect_orphans
from aggregator_service.storage.database import Database
from tests.support.api import Api, TestMember, TestTask
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.persistence import Persistent
from tests.support.postgres import TestDatabase
from tests.support.server import AggregatorProcess, running_aggregator

COHORT = 6


@pytest.fixture
def shared(postgres: TestDatabase, new_prefix: Callable[[], str]) -> dict[str, str]:
    """Settings of empty storage that several servers can share."""
    return {"database_url": postgres.schema(), "blobs": new_prefix()}


@pytest.fixture
def server(tmp_path: Path, shared: dict[str, str]) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path / "data", fold_batch=4, inline_bytes=0, **shared)
    yield process
    process.stop()


def exact(task: TestTask) -> None:
    total, mask = task.opened(1), task.plan.layout.blocks[0].integral_mask()
    assert task.round(1)["survivors"] == COHORT
    assert np.array_equal(total[mask], np.full(mask.sum(), float(COHORT)))
    assert np.allclose(total[~mask], 2.0**COHORT - 1, atol=1e-6)


def test_death_between_blobs_and_their_rows(server: AggregatorProcess, api: Api) -> None:
    """One round, three deaths: during an upload, a fold and a release, each between the blob and its row."""
    server.start(crash_at="upload.stored-before-row")
    attempt = Persistent(server, ["fold.blob-written-before-commit", "release.blob-written-before-commit"])
    task = api.create_task(cohort=COHORT)
    members = task.enrol(COHORT)
    task.wait_round(1, "collecting")
    for index, member in enumerate(members):
        body = member.contribution(1, 2.0**index)
        answer = attempt(lambda member=member, body=body: member.put(1, body))
        assert answer.status_code in (200, 201), answer.text
    attempt(lambda: task.wait_round(1, "complete"))
    assert attempt.deaths == 3
    exact(task)
    assert kinds(server) == {"aggregates": 2, "snapshots": 2, "partials": 1, "contributions": 1}
    database = Database(server.database_url, connections=1)
    assert collect_orphans(database, server.blobs, before=time.time() + 60) == 4
    database.close()
    assert kinds(server) == {"aggregates": 1, "snapshots": 1}


def kinds(server: AggregatorProcess) -> Counter[str]:
    return Counter(key.partition("/")[0] for key in server.blobs.keys())  # noqa: SIM118 - a store, not a dict


def test_two_servers_over_one_storage(
    server: AggregatorProcess, api: Api, shared: dict[str, str], tmp_path: Path
) -> None:
    """Clients use either server; a long poll at one ends at once with a change at the other."""
    server.start()
    # faster than `recheck_seconds`: only a notification can end the poll
    with (
        running_aggregator(tmp_path / "second", fold_batch=4, recheck_seconds=60, **shared) as second,
        closing(Api(second.url, second.operator_token)) as other,
    ):
        task = api.create_task(cohort=COHORT)
        members = task.enrol(COHORT)
        task.wait_round(1, "collecting")
        heard: list[tuple[float, httpx.Response]] = []

        def wait() -> None:
            answer = other.http.get(
                f"{task.path}/rounds/current",
                params={"wait": 30},
                headers={**members[0].auth, "If-None-Match": view_etag(api, task, members[0])},
            )
            heard.append((time.monotonic(), answer))

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.5)
        for index, member in enumerate(members):
            body = member.contribution(1, 2.0**index)
            task.api = (api, other)[index % 2]
            assert member.put(1, body).status_code == 201
        task.api = api
        begun = time.monotonic()
        waiter.join(timeout=40)
        ((when, answer),) = heard
        assert answer.status_code == 200, answer.text
        assert when - begun < 20  # at the end of its wait it would see the change without a notification
        task.wait_round(1, "complete")
        exact(task)
        assert kinds(server) == {"aggregates": 1, "snapshots": 1}


def test_a_masked_round_with_dropouts(server: AggregatorProcess, api: Api) -> None:
    """Stages, handouts and unmasking, with a client that drops out after sharing."""
    server.start()
    task = masked_task(api, "masked", COHORT)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, drop={2: "contribute"})
    assert task.wait_round(1, "complete")["survivors"] == COHORT - 1
    total = task.opened(1)
    mask = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[mask], np.full(mask.sum(), COHORT - 1.0))
    assert np.allclose(total[~mask], 2.0**COHORT - 1 - 2.0**2, rtol=0, atol=task.plan.predicted_error)
    assert kinds(server) == {"aggregates": 1, "snapshots": 1}


def view_etag(api: Api, task: TestTask, member: TestMember) -> str:
    """The ETag of the member's view."""
    answer = api.http.get(f"{task.path}/rounds/current", headers=member.auth)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["etag"])


def test_characters_that_postgresql_does_not_store_are_refused(server: AggregatorProcess, api: Api) -> None:
    server.start()
    for path in ("/v1/tasks/t%00x", "/v1/tasks/t%00x/rounds/1"):
        answer = api.http.get(path, headers=api.operator)
        assert answer.status_code in (400, 404, 422), answer.text
        assert answer.json()["fault"] == "client"
    assert api.http.get("/v1/tasks", params={"name": "a\0b"}, headers=api.operator).status_code in (200, 400, 422)
    assert "Traceback" not in server.log()
