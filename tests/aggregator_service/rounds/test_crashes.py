"""kill -9 at any point of a plain, masked or one-shot round: after a restart the sum is exact.

Contributions are distinct powers of two, so that the sum shows which were lost and which were counted twice.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from aggregator_service.crash_points import CrashPoint
from tests.support.api import Api, TestTask, contribute, piece_fields, serving
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.oneshot import committee_turn, enrol_clients, enrol_committee, oneshot_task, publish_keys
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, Persistent
from tests.support.signing import SIGNED, raw_head


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    """It is not started."""
    process = AggregatorProcess(tmp_path / "data", fold_batch=4)
    yield process
    process.stop()


COHORT = 5
POINTS = {
    "plain": [
        "upload.stored-before-row",
        "upload.row-before-ack",
        "fold.blob-written-before-commit",
        "fold.committed",
        "release.blob-written-before-commit",
        "release.committed",
    ],
    "masked": [
        "stage.stored-before-ack",
        "stage.advertising-ended",
        "stage.sharing-ended",
        "stage.collecting-ended",
        "stage.confirming-ended",
        "release.blob-written-before-commit",
    ],
    "oneshot": ["round.opened", "stage.collecting-ended", "release.blob-written-before-commit"],
}
"""Where the server dies in one round, in the order in which the round comes there."""

ELSEWHERE = {
    "move": "storage/test_backup.py",
    "parts": "compute/test_clusters.py",
    "worker": "compute/test_clusters.py",
}


def test_every_named_point_is_met() -> None:
    met = {point for points in POINTS.values() for point in points}
    assert met == {point for point in get_args(CrashPoint) if point.partition(".")[0] not in ELSEWHERE}


def play_round(api: Api, kind: str) -> TestTask:
    if kind == "masked":
        task = masked_task(api, "points", COHORT)
        play(task, enrol_masked(task, COHORT))
    elif kind == "oneshot":
        task = oneshot_task(api, "crashes", COHORT)
        clients, members = enrol_clients(task, COHORT), enrol_committee(task, 5)
        publish_keys(members, 1)  # the last one opens the round
        task.wait_round(1, "collecting")
        for index, client in enumerate(clients):
            assert client.take(1, 2.0**index).is_success
        committee_turn(task, members)
    else:
        task = api.create_task(cohort=COHORT)
        contribute(task.begin(COHORT), 1)
    return task


def assert_exact(task: TestTask, server: AggregatorProcess) -> None:
    """There was one round, its sum is that of all clients, and what they sent is deleted."""
    task.assert_sum(1, (2.0**index for index in range(COHORT)))
    assert [row["number"] for row in task.found("rounds")["rounds"]] == [1]
    wait_until(lambda: server.kinds() == {"aggregates": 1, "snapshots": 1}, "what clients sent is deleted")


@pytest.mark.timeout(300)  # a server starts again after each death
@pytest.mark.parametrize("kind", POINTS)
def test_death_at_every_named_point_of_one_round(server: AggregatorProcess, kind: str) -> None:
    server.start(crash_at=POINTS[kind][0])
    with Persistent(server, POINTS[kind][1:], auth=SIGNED) as http:
        task = play_round(Api.of(server, http), kind)
        task.wait_round(1, "complete")
        if http.deaths < len(POINTS[kind]):  # the round is complete a moment before its blobs are deleted
            http.revive()
        assert http.deaths == len(POINTS[kind])
        assert_exact(task, server)


def test_death_between_a_chunk_and_its_row_and_during_an_upload(server: AggregatorProcess) -> None:
    """The first chunk was not acknowledged, so it is sent again; its first blob is deleted."""
    server.start(crash_at="upload.stored-before-row")
    with Persistent(server, auth=SIGNED) as http:
        task = Api.of(server, http).create_task(cohort=COHORT)
        members = task.begin(COHORT)
        body = members[2].contribution(1, 4.0)
        chunk, rest = body[:20], body[20:]
        answer = members[2].piece(0, chunk)
        assert (http.deaths, answer.status_code, answer.headers["upload-offset"]) == (1, 204, "20")
        assert server.kinds() == {"chunks": 1}
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            fields = {"Content-Length": len(rest), **piece_fields(20, rest, body)}
            lines = [f"{name}: {value}" for name, value in fields.items()]
            head = raw_head(server.url, "PATCH", members[2].path(1), members[2].token, *lines)
            connection.sendall(head + rest[:20])
            time.sleep(0.2)
            server.kill()
        server.start()
        assert members[2].offset() == 20
        assert members[2].piece(20, rest, body).status_code == 201
        contribute(members, 1)
        assert_exact(task, server)


def test_death_while_folding(tmp_path: Path) -> None:
    """The worker stands still in the last batch. Without its server it exits, and what it writes does not count."""
    with serving(tmp_path / "data", fold_batch=4, test_spawns_workers=1) as (server, api):
        task, (*first, last) = api.begin(COHORT)
        contribute(first, 1)  # the first batch is folded while other clients upload
        wait_until(lambda: task.round(1)["folded"] == COHORT - 1, "the first batch is folded while collecting")
        worker = server.fold_worker()
        worker.suspend()
        contribute([last], 1, 16.0)
        assert task.wait_round(1, "folding")["folded"] == COHORT - 1
        server.kill()
        worker.resume()
        server.start()
        assert_exact(task, server)
        worker.wait(timeout=15)


def test_two_servers_never_share_a_data_directory(server: AggregatorProcess, tmp_path: Path) -> None:
    server.start()
    second = AggregatorProcess(tmp_path / "data")
    with pytest.raises(RuntimeError, match="another server runs on .*: give each server its own data directory"):
        second.start()
    assert "Traceback" not in second.log()
