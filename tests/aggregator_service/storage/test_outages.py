"""Servers whose database or blob store fails and recovers, or that are killed: exact sums, and nothing lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from aggregator_service.storage.cleanup import collect_orphans
from aggregator_service.storage.database import Database
from tests.support.api import Api, TestMember, TestTask, contribute, serving, slug
from tests.support.postgres import TestDatabase
from tests.support.s3 import S3Server
from tests.support.server import AggregatorProcess, Persistent

COHORT = 4


def begun(api: Api) -> tuple[TestTask, list[TestMember]]:
    """A round in which two of four clients have contributed."""
    task = api.create_task(cohort=COHORT)
    members = task.begin(COHORT)
    contribute(members[:2], 1)
    return task, members


def finish(task: TestTask, members: list[TestMember]) -> None:
    """The other clients contribute, repeating refused requests; the sum is exact."""
    for index, member in enumerate(members):
        body = member.contribution(1, 2.0**index)
        end = time.monotonic() + 30
        while (answer := member.put(1, body)).status_code == 503:
            assert time.monotonic() < end, answer.text
            time.sleep(0.1)
        assert answer.status_code in (200, 201), answer.text
    task.assert_sum(1, (2.0**index for index in range(COHORT)))


def unavailable(answer: httpx.Response, part: str) -> None:
    """Check a problem document: it names the failed part, has Retry-After, and contains no secret."""
    assert (answer.status_code, slug(answer), answer.json()["fault"]) == (503, "unavailable", "server"), answer.text
    assert part in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 1


def test_the_database_fails_and_recovers(postgres: TestDatabase, tmp_path: Path) -> None:
    with serving(tmp_path / "data", database_url=postgres.schema(), fold_batch=2) as (server, api):
        task, members = begun(api)
        with postgres.unavailable():
            time.sleep(1.1)  # `/readyz` keeps its result for a second
            unavailable(api.http.get("/readyz"), "database")
            unavailable(api.http.get(task.path, headers=api.operator), "database")
            unavailable(members[2].put(1, members[2].contribution(1, 4.0)), "database")
            assert api.http.get("/healthz").status_code == 200
        finish(task, members)
        time.sleep(1.1)
        assert api.http.get("/readyz").json() == {"status": "ready"}
        assert "Traceback" not in server.log()


def test_the_blob_store_fails_and_recovers(s3: S3Server, new_prefix: Callable[[], str], tmp_path: Path) -> None:
    with serving(tmp_path / "data", blobs=new_prefix(), fold_batch=4, inline_bytes=0) as (server, api):
        task, members = begun(api)
        with s3.unavailable():
            time.sleep(1.1)
            unavailable(api.http.get("/readyz"), "blob store")
            assert (api.http.get("/healthz").status_code, task.now()["state"]) == (200, "open")
        finish(task, members)
        time.sleep(1.1)
        assert api.http.get("/readyz").json() == {"status": "ready"}
        for secret in (*s3.environment.values(), "Traceback"):
            if secret not in ("us-east-1", "tests"):
                assert secret not in server.log()


SHARED_COHORT = 6


@pytest.fixture
def shared(postgres: TestDatabase, new_prefix: Callable[[], str]) -> dict[str, str]:
    """Settings of empty storage that several servers can share."""
    return {"database_url": postgres.schema(), "blobs": new_prefix()}


@pytest.fixture
def server(tmp_path: Path, shared: dict[str, str]) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path / "data", fold_batch=4, inline_bytes=0, **shared)
    yield process
    process.stop()


def test_death_between_blobs_and_their_rows(server: AggregatorProcess, api: Api) -> None:
    """One round, three deaths: during an upload, a fold and a release, each between the blob and its row."""
    server.start(crash_at="upload.stored-before-row")
    attempt = Persistent(server, ["fold.blob-written-before-commit", "release.blob-written-before-commit"])
    task = api.create_task(cohort=SHARED_COHORT)
    members = task.begin(SHARED_COHORT)
    for index, member in enumerate(members):
        body = member.contribution(1, 2.0**index)
        answer = attempt(lambda member=member, body=body: member.put(1, body))
        assert answer.status_code in (200, 201), answer.text
    attempt(lambda: task.wait_round(1, "complete"))
    assert attempt.deaths == 3
    task.assert_sum(1, (2.0**index for index in range(SHARED_COHORT)))
    assert server.kinds() == {"aggregates": 2, "snapshots": 2, "partials": 1, "contributions": 1}
    database = Database(server.database_url, connections=1)
    assert collect_orphans(database, server.blobs, before=time.time() + 60) == 4
    database.close()
    assert server.kinds() == {"aggregates": 1, "snapshots": 1}


def test_two_servers_over_one_storage(
    server: AggregatorProcess, api: Api, shared: dict[str, str], tmp_path: Path
) -> None:
    """Clients use either server; a long poll at one ends at once with a change at the other."""
    server.start()
    # faster than `recheck_seconds`: only a notification can end the poll
    with serving(tmp_path / "second", fold_batch=4, recheck_seconds=60, **shared) as (second, other):
        task = api.create_task(cohort=SHARED_COHORT)
        members = task.begin(SHARED_COHORT)
        heard: list[tuple[float, httpx.Response]] = []

        def wait() -> None:
            answer = other.http.get(
                f"{task.path}/rounds/current",
                params={"wait": 30},
                headers={**members[0].auth, "If-None-Match": members[0].found("rounds/current").headers["etag"]},
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
        task.assert_sum(1, (2.0**index for index in range(SHARED_COHORT)))
        assert server.kinds() == {"aggregates": 1, "snapshots": 1}


def test_characters_that_postgresql_does_not_store_are_refused(server: AggregatorProcess, api: Api) -> None:
    server.start()
    for path in ("/v1/tasks/t%00x", "/v1/tasks/t%00x/rounds/1"):
        answer = api.http.get(path, headers=api.operator)
        assert answer.status_code in (400, 404, 422), answer.text
        assert answer.json()["fault"] == "client"
    assert api.http.get("/v1/tasks", params={"name": "a\0b"}, headers=api.operator).status_code in (200, 400, 422)
    assert "Traceback" not in server.log()
