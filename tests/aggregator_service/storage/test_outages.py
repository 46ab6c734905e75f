"""Servers whose database or blob store fails and recovers, or that are killed: exact sums, and nothing lost."""

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
from tests.support.postgres import TestDatabase
from tests.support.s3 import BUCKET, S3Server, running_s3
from tests.support.server import AggregatorProcess, Persistent, running_aggregator

COHORT = 4


@pytest.fixture
def own_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server that a test may kill."""
    (tmp_path / "s3").mkdir()
    with running_s3(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def begun(api: Api) -> tuple[TestTask, list[TestMember]]:
    """A round in which two of four clients have contributed."""
    task = api.create_task(cohort=COHORT)
    members = task.enrol(COHORT)
    task.wait_round(1, "collecting")
    for index in range(2):
        assert members[index].put(1, members[index].contribution(1, 2.0**index)).status_code == 201
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
    assert task.wait_round(1, "complete")["survivors"] == COHORT
    total, mask = task.opened(1), task.plan.layout.blocks[0].integral_mask()
    assert np.array_equal(total[mask], np.full(mask.sum(), float(COHORT)))
    assert np.allclose(total[~mask], 2.0**COHORT - 1, atol=1e-6)


def unavailable(answer: object, part: str) -> None:
    """Check a problem document: it names the failed part, has Retry-After, and contains no secret."""
    assert answer.status_code == 503, answer.text  # type: ignore[attr-defined]
    document = answer.json()  # type: ignore[attr-defined]
    assert (document["type"], document["fault"]) == ("urn:hushrec:problem:unavailable", "server")
    assert part in document["detail"]
    assert int(answer.headers["retry-after"]) >= 1  # type: ignore[attr-defined]


def test_the_database_fails_and_recovers(postgres: TestDatabase, tmp_path: Path) -> None:
    with (
        running_aggregator(tmp_path / "data", database_url=postgres.schema(), fold_batch=2) as server,
        closing(Api(server.url, server.operator_token)) as api,
    ):
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


def test_the_blob_store_fails_and_recovers(own_s3: S3Server, tmp_path: Path) -> None:
    with (
        running_aggregator(tmp_path / "data", blobs=f"s3://{BUCKET}/gone", fold_batch=4, inline_bytes=0) as server,
        closing(Api(server.url, server.operator_token)) as api,
    ):
        task, members = begun(api)
        own_s3.kill()
        time.sleep(1.1)
        unavailable(api.http.get("/readyz"), "blob store")
        unavailable(members[2].put(1, members[2].contribution(1, 4.0)), "blob store")
        assert api.http.get(task.path, headers=api.operator).status_code == 200
        own_s3.start()
        finish(task, members)
        time.sleep(1.1)
        assert api.http.get("/readyz").json() == {"status": "ready"}
        for secret in (*own_s3.environment.values(), "Traceback"):
            if secret not in ("us-east-1", "tests"):
                assert secret not in server.log()


def test_a_server_does_not_start_on_unavailable_storage(tmp_path: Path) -> None:
    for settings, reason in (
        (
            {"database_url": "postgresql://me:hidden@127.0.0.1:1/none"},
            "nothing listens at the host and port of HUSHREC_DATABASE_URL",
        ),
        ({"blobs": "dir:/proc/nothing"}, "the blob directory cannot be used"),
        ({"blobs": "s3://NOT-A-BUCKET"}, "HUSHREC_BLOBS"),
    ):
        server = AggregatorProcess(tmp_path / "data", **settings)
        with pytest.raises(RuntimeError, match=reason):
            server.start()
        assert "Traceback" not in server.log()
        assert "hidden" not in server.log()
        server.log_path.unlink()


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


def exact(task: TestTask) -> None:
    total, mask = task.opened(1), task.plan.layout.blocks[0].integral_mask()
    assert task.round(1)["survivors"] == SHARED_COHORT
    assert np.array_equal(total[mask], np.full(mask.sum(), float(SHARED_COHORT)))
    assert np.allclose(total[~mask], 2.0**SHARED_COHORT - 1, atol=1e-6)


def test_death_between_blobs_and_their_rows(server: AggregatorProcess, api: Api) -> None:
    """One round, three deaths: during an upload, a fold and a release, each between the blob and its row."""
    server.start(crash_at="upload.stored-before-row")
    attempt = Persistent(server, ["fold.blob-written-before-commit", "release.blob-written-before-commit"])
    task = api.create_task(cohort=SHARED_COHORT)
    members = task.enrol(SHARED_COHORT)
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
        task = api.create_task(cohort=SHARED_COHORT)
        members = task.enrol(SHARED_COHORT)
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
    task = masked_task(api, "masked", SHARED_COHORT)
    clients = enrol_masked(task, SHARED_COHORT)
    play(server, task, clients, drop={2: "contribute"})
    assert task.wait_round(1, "complete")["survivors"] == SHARED_COHORT - 1
    total = task.opened(1)
    mask = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[mask], np.full(mask.sum(), SHARED_COHORT - 1.0))
    assert np.allclose(total[~mask], 2.0**SHARED_COHORT - 1 - 2.0**2, rtol=0, atol=task.plan.predicted_error)
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
