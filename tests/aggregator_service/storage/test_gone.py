"""A server whose database or blob store fails and recovers: it reports that, loses nothing, and continues by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.api import Api, TestMember, TestTask
from tests.support.postgres import TestDatabase
from tests.support.s3 import BUCKET, S3Server, running_s3
from tests.support.server import AggregatorProcess, running_aggregator

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
