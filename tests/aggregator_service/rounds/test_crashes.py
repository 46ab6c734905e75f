"""kill -9 at any point of a plain, masked or one-shot round: after a restart the sum is exact.

Contributions are distinct powers of two, so that the sum shows which were lost and which were counted twice.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from aggregator_service.crash_points import CRASH_POINTS
from tests.support.api import Api, TestTask, digest_field
from tests.support.masked import STAGES, enrol_masked, masked_task, steps_of
from tests.support.oneshot import enrol_clients, enrol_committee, oneshot_task, publish_keys
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, Persistent
from tests.support.signing import raw_head


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path / "data", fold_batch=4, test_spawns_workers=1)
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
        "release.committed",
    ],
    "oneshot": [
        "round.opened",
        "stage.collecting-ended",
        "stage.stored-before-ack",
        "stage.confirming-ended",
        "release.blob-written-before-commit",
    ],
}
"""Where the server dies in one round, in the order in which the round comes there."""

ELSEWHERE = {"chunk": "below", "parts": "compute/test_clusters.py", "worker": "compute/test_clusters.py"}
Send = Callable[[], httpx.Response]


def test_every_named_point_is_met() -> None:
    met = {point for points in POINTS.values() for point in points}
    assert met == {point for point in CRASH_POINTS if point.partition(".")[0] not in ELSEWHERE}


class Stubborn:
    """Sends each message until it is acknowledged, and restarts the server when it died."""

    def __init__(self, api: Api, attempt: Persistent) -> None:
        self.api, self.attempt = api, attempt

    def __call__(self, send: Send) -> None:
        answer = self.attempt(send)
        assert answer.status_code in (200, 201), answer.text

    def wait(self, task: TestTask, state: str) -> None:
        self.attempt(lambda: task.wait_round(1, state))

    def plain(self) -> TestTask:
        """Play a plain round; return its task."""
        task = self.api.create_task(cohort=COHORT)
        for index, member in enumerate(task.begin(COHORT)):
            body = member.contribution(1, 2.0**index)
            self(lambda member=member, body=body: member.put(1, body))  # type: ignore[misc]
        return task

    def masked(self) -> TestTask:
        """Play a masked round; return its task."""
        task = masked_task(self.api, "points", COHORT)
        clients = enrol_masked(task, COHORT)
        for step in steps_of(task):
            self.wait(task, STAGES[step])
            for index, client in clients.items():
                body = self.attempt(lambda client=client, step=step, index=index: client.make(1, step, 2.0**index))
                self(lambda client=client, step=step, body=body: client.send(1, step, body))  # type: ignore[misc]
        return task

    def oneshot(self) -> TestTask:
        """Play a one-shot round; return its task."""
        task = oneshot_task(self.api, "crashes", COHORT)
        clients, members = enrol_clients(task, COHORT), enrol_committee(task, 5)
        publish_keys(members[:-1], 1)
        self(lambda: members[-1].publish(1))  # the round opens
        self.wait(task, "collecting")
        for index, client in enumerate(clients):
            body = self.attempt(lambda client=client, index=index: client.make(1, 2.0**index)).encode()
            self(lambda client=client, body=body: client.send(1, body))  # type: ignore[misc]
        self.wait(task, "confirming")
        for member in members:
            found = self.attempt(lambda member=member: member.inspect(1))
            self(lambda member=member, found=found: member.confirm(1, found))  # type: ignore[misc]
        self.wait(task, "unmasking")
        for member in members:
            share = self.attempt(lambda member=member: member.summed_share(1))
            self(lambda member=member, share=share: member.unmask(1, share))  # type: ignore[misc]
        return task


def assert_exact(task: TestTask, server: AggregatorProcess) -> None:
    """There was one round, its sum is that of all clients, and what they sent is deleted."""
    task.assert_sum(1, (2.0**index for index in range(COHORT)))
    listed = task.api.http.get(f"{task.path}/rounds", headers=task.api.operator).json()["rounds"]
    assert [row["number"] for row in listed] == [1]
    wait_until(lambda: server.kinds() == {"aggregates": 1, "snapshots": 1}, "what clients sent is deleted")


@pytest.mark.timeout(300)  # a server starts again after each death
@pytest.mark.parametrize("kind", POINTS)
def test_death_at_every_named_point_of_one_round(server: AggregatorProcess, api: Api, kind: str) -> None:
    server.start(crash_at=POINTS[kind][0])
    attempt = Persistent(server, POINTS[kind][1:])
    sender = Stubborn(api, attempt)
    play: Callable[[], TestTask] = getattr(sender, kind)
    task = play()
    sender.wait(task, "complete")
    if attempt.deaths < len(POINTS[kind]):  # the round is complete a moment before its blobs are deleted
        attempt.revive()
    assert attempt.deaths == len(POINTS[kind])
    assert_exact(task, server)


def test_death_between_a_chunk_and_its_row_and_during_an_upload(server: AggregatorProcess, api: Api) -> None:
    """The first chunk was not acknowledged, so it is sent again; its first blob is deleted."""
    server.start(crash_at="chunk.stored-before-row")
    attempt = Persistent(server)
    task = api.create_task(cohort=COHORT)
    members = task.begin(COHORT)
    bodies = [member.contribution(1, 2.0**index) for index, member in enumerate(members)]
    chunk, rest = bodies[2][:20], bodies[2][20:]
    answer = attempt(lambda: members[2].piece(0, chunk))
    assert (attempt.deaths, answer.status_code, answer.headers["upload-offset"]) == (1, 204, "20")
    assert server.kinds() == {"chunks": 1}
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        lines = ["Content-Type: application/partial-upload", "Upload-Offset: 20", "Upload-Complete: ?1"]
        lines += [f"Content-Length: {len(rest)}", f"Content-Digest: {digest_field(rest)}"]
        lines += [f"Repr-Digest: {digest_field(bodies[2])}"]
        head = raw_head(server.url, "PATCH", members[2].path(1), members[2].token, *lines)
        connection.sendall(head + rest[:20])
        time.sleep(0.2)
        server.kill()
    server.start()
    assert members[2].offset() == 20
    assert members[2].piece(20, rest, bodies[2]).status_code == 201
    for member, body in zip(members, bodies, strict=True):
        assert member.put(1, body).status_code in (200, 201)
    assert_exact(task, server)


def test_death_while_folding(server: AggregatorProcess, api: Api) -> None:
    """The worker stands still in the last batch. Without its server it exits, and what it writes does not count."""
    server.start()
    task = api.create_task(cohort=COHORT)
    for index, member in enumerate(task.begin(COHORT)):
        if index == COHORT - 1:  # the first batch is folded while other clients upload
            wait_until(lambda: task.round(1)["folded"] == COHORT - 1, "the first batch is folded while collecting")
            worker = server.fold_worker()
            worker.suspend()
        assert member.put(1, member.contribution(1, 2.0**index)).status_code == 201
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
