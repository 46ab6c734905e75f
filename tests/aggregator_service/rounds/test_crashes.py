"""kill -9 at any point of a plain, masked or one-shot round: after a restart the sum is exact.

Contributions are distinct powers of two, so that the sum shows which were lost and which were counted twice.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from aggregator_service.crash_points import CRASH_POINTS
from tests.support.api import Api, TestMember, TestTask, digest_field, signed_enrolment
from tests.support.masked import STAGES, MaskedClient, enrol_masked, masked_task, steps_of
from tests.support.oneshot import (
    OneshotClient,
    OneshotMember,
    enrol_clients,
    enrol_committee,
    oneshot_task,
    publish_keys,
)
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, Persistent
from tests.support.signing import raw_head

COHORT = 7
VALUES = [float(2**index) for index in range(COHORT)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path / "data", fold_batch=4, test_spawns_workers=1)
    yield process
    process.stop()


def enrol_persistently(task: TestTask, attempt: Persistent) -> TestMember:
    invitation = task.api.invite(task.id)
    body = signed_enrolment(invitation)
    answer = attempt(lambda: task.api.http.post("/v1/enrolments", json=body))
    assert answer.status_code in (200, 201), answer.text
    return TestMember(task, answer.json()["client_id"], answer.json()["token"])


def settle(task: TestTask, attempt: Persistent) -> None:
    """Wait until round 1 is complete, restarting the server when it dies."""
    end = time.monotonic() + 100
    while time.monotonic() < end:
        answer = attempt(lambda: task.api.http.get(f"{task.path}/rounds/1", headers=task.api.operator))
        if answer.status_code == 200 and answer.json()["state"] == "complete":
            return
        time.sleep(0.05)
    raise AssertionError(f"the round does not end:\n{attempt.server.log()[-3000:]}")


def assert_exact(task: TestTask, server: AggregatorProcess) -> None:
    """There was one round, its sum is that of all clients, and what they sent is deleted."""
    task.assert_sum(1, VALUES[: task.view["schedule"]["cohort_size"]])
    listed = task.api.http.get(f"{task.path}/rounds", headers=task.api.operator).json()["rounds"]
    assert [row["number"] for row in listed] == [1]
    wait_until(lambda: server.kinds() == {"aggregates": 1, "snapshots": 1}, "what clients sent is deleted")


@pytest.mark.parametrize(
    "point", [point for point in CRASH_POINTS if point.partition(".")[0] not in ("stage", "chunk", "parts", "worker")]
)
def test_death_at_a_named_point(server: AggregatorProcess, api: Api, point: str) -> None:
    server.start(crash_at=point)
    attempt = Persistent(server)
    task = api.create_task(cohort=COHORT)
    members = [*task.enrol(COHORT - 1), enrol_persistently(task, attempt)]
    while True:  # the round opens after the last enrolment was answered, or after the restart
        asked = attempt(lambda: api.http.get(f"{task.path}/rounds/1", headers=api.operator))
        if asked.status_code == 200:
            break
        time.sleep(0.03)
    for member, value in zip(members, VALUES, strict=True):
        body = member.contribution(1, value)
        answer = attempt(lambda member=member, body=body: member.put(1, body))
        assert answer.status_code in (200, 201), answer.text
    settle(task, attempt)
    if point == "release.committed" and attempt.deaths == 0:
        server.wait_dead()  # the round is complete a moment before its blobs are deleted
        attempt.deaths += 1
        server.start()
    assert attempt.deaths == 1
    assert_exact(task, server)


def test_death_during_an_upload(server: AggregatorProcess, api: Api) -> None:
    server.start()
    task = api.create_task(cohort=COHORT)
    members = task.begin(COHORT)
    bodies = [member.contribution(1, value) for member, value in zip(members, VALUES, strict=True)]
    for member, body in zip(members[:2], bodies[:2], strict=True):
        assert member.put(1, body).status_code == 201
    chunk, rest = bodies[2][:20], bodies[2][20:]
    assert members[2].piece(0, chunk).status_code == 204
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        lines = ["Content-Type: application/partial-upload", "Upload-Offset: 20", "Upload-Complete: ?1"]
        lines += [f"Content-Length: {len(rest)}", f"Content-Digest: {digest_field(rest)}"]
        lines += [f"Repr-Digest: {digest_field(bodies[2])}"]
        half.sendall(raw_head(server.url, "PATCH", members[2].path(1), members[2].token, *lines) + rest[:20])
        time.sleep(0.2)
        server.kill()
    server.start()
    head = api.http.head(members[2].path(1), headers=members[2].auth)
    assert (head.headers["upload-offset"], head.headers["upload-complete"]) == ("20", "?0")
    assert members[2].piece(20, rest, bodies[2]).status_code == 201
    for member, body in zip(members, bodies, strict=True):
        assert member.put(1, body).status_code in (200, 201)
    assert_exact(task, server)


def test_death_between_a_chunk_and_its_row(server: AggregatorProcess, api: Api) -> None:
    """The chunk was not acknowledged, so it is sent again; its first blob is deleted."""
    server.start(crash_at="chunk.stored-before-row")
    attempt = Persistent(server)
    task = api.create_task(cohort=COHORT)
    (member, *_) = task.begin(COHORT)
    chunk = member.contribution(1, 1.0)[:50]
    answer = attempt(lambda: member.piece(0, chunk))
    assert attempt.deaths == 1
    assert (answer.status_code, answer.headers["upload-offset"]) == (204, "50")
    assert server.kinds() == {"chunks": 1}


def halt_in_folding(server: AggregatorProcess, api: Api) -> tuple[TestTask, psutil.Process]:
    """A round in state folding whose worker is stopped in the middle of the last batch."""
    server.start()
    task = api.create_task(cohort=COHORT)
    members = task.begin(COHORT)
    for index, (member, value) in enumerate(zip(members, VALUES, strict=True)):
        if index == 4:  # the first batch of four is folded while other clients upload
            end = time.monotonic() + 30
            while task.round(1)["folded"] < 4:
                assert time.monotonic() < end, "the first batch was not folded while collecting"
                time.sleep(0.02)
            server.fold_worker().suspend()
        assert member.put(1, member.contribution(1, value)).status_code == 201
    assert task.wait_round(1, "folding")["folded"] == 4
    return task, server.fold_worker()


def test_death_while_folding(server: AggregatorProcess, api: Api) -> None:
    task, worker = halt_in_folding(server, api)
    server.kill()
    worker.resume()  # the worker has no server now: it must exit, and what it writes must not count
    server.start()
    assert_exact(task, server)
    worker.wait(timeout=15)


def test_a_fold_worker_that_dies_is_replaced(server: AggregatorProcess, api: Api) -> None:
    task, worker = halt_in_folding(server, api)
    os.kill(worker.pid, signal.SIGKILL)
    assert_exact(task, server)


def test_two_servers_never_share_a_data_directory(server: AggregatorProcess, tmp_path: Path) -> None:
    server.start()
    second = AggregatorProcess(tmp_path / "data")
    with pytest.raises(RuntimeError, match="another server runs"):
        second.start()
    assert "Traceback" not in second.log()
    second.stop()


MASKED = 5
OF_STAGES = [point for point in CRASH_POINTS if point.startswith("stage.")]
OF_THE_SUM = ["fold.blob-written-before-commit", "release.blob-written-before-commit", "release.committed"]
"""In the order in which a masked round reaches them."""


def stubborn_step(attempt: Persistent, client: MaskedClient, step: str, value: float) -> None:
    """Take a step, sending its message until it is acknowledged."""
    body = attempt(lambda: client.make(1, step, value))  # type: ignore[arg-type]
    stubborn(attempt, lambda: client.send(1, step, body))


@pytest.mark.timeout(600)  # a server starts again after each death
@pytest.mark.parametrize("points", [OF_STAGES, OF_THE_SUM], ids=["stages", "sum"])
def test_death_at_every_named_point_of_one_round(server: AggregatorProcess, api: Api, points: list[str]) -> None:
    server.start(crash_at=points[0])
    attempt = Persistent(server, points[1:])
    task = masked_task(api, "points", MASKED)
    clients = enrol_masked(task, MASKED)
    for step in steps_of(task):
        attempt(lambda step=step: task.wait_round(1, STAGES[step]))
        for index, client in clients.items():
            stubborn_step(attempt, client, step, 2.0**index)
    attempt(lambda: task.wait_round(1, "complete"))
    if attempt.deaths < len(points):  # the round is complete a moment before its blobs are deleted
        attempt.revive()
    assert attempt.deaths == len(points)
    assert_exact(task, server)


@pytest.mark.timeout(600)
def test_death_in_the_middle_of_every_stage(server: AggregatorProcess, api: Api) -> None:
    server.start()
    attempt = Persistent(server)
    task = masked_task(api, "stages", MASKED)
    clients = enrol_masked(task, MASKED)
    for step in steps_of(task):
        attempt(lambda step=step: task.wait_round(1, STAGES[step]))
        for index, client in clients.items():
            if index == 2:
                server.kill()
                server.start()
            stubborn_step(attempt, client, step, 2.0**index)
    assert attempt.deaths == 0
    assert_exact(task, server)


BEFORE_THE_SUM = [
    "round.opened",
    "upload.stored-before-row",
    "upload.row-before-ack",
    "stage.collecting-ended",
    "stage.stored-before-ack",
    "stage.confirming-ended",
]
ONESHOT_OF_THE_SUM = [
    "fold.blob-written-before-commit",
    "fold.committed",
    "release.blob-written-before-commit",
    "release.committed",
]
"""In the order in which a one-shot round reaches them."""


def stubborn(attempt: Persistent, send: Callable[[], httpx.Response]) -> None:
    """Send a message until it is acknowledged."""
    answer = attempt(send)
    assert answer.status_code in (200, 201), answer.text


def stubborn_round(
    attempt: Persistent,
    task: TestTask,
    clients: list[OneshotClient],
    members: list[OneshotMember],
    between: Callable[[int], None] = lambda place: None,
) -> None:
    """Play round 1; `between` is called before each message, with the place of its sender."""
    attempt(lambda: task.wait_round(1, "collecting"))
    for place, client in enumerate(clients):
        body = attempt(lambda client=client, place=place: client.make(1, 2.0**place)).encode()
        between(place)
        stubborn(attempt, lambda client=client, body=body: client.send(1, body))
    attempt(lambda: task.wait_round(1, "confirming"))
    for place, member in enumerate(members):
        found = attempt(lambda member=member: member.inspect(1))
        between(place)
        stubborn(attempt, lambda member=member, found=found: member.confirm(1, found))
    attempt(lambda: task.wait_round(1, "unmasking"))
    for place, member in enumerate(members):
        share = attempt(lambda member=member: member.summed_share(1))
        between(place)
        stubborn(attempt, lambda member=member, share=share: member.unmask(1, share))
    attempt(lambda: task.wait_round(1, "complete"))


def begin(api: Api, attempt: Persistent) -> tuple[TestTask, list[OneshotClient], list[OneshotMember]]:
    task = oneshot_task(api, "crashes", 4)
    clients, members = enrol_clients(task, 4), enrol_committee(task, 5)
    publish_keys(members[:4], 1)
    stubborn(attempt, lambda: members[4].publish(1))  # the round opens
    return task, clients, members


@pytest.mark.timeout(300)  # a server starts again after each death
@pytest.mark.parametrize("points", [BEFORE_THE_SUM, ONESHOT_OF_THE_SUM], ids=["stages", "sum"])
def test_oneshot_death_at_every_named_point_of_one_round(
    server: AggregatorProcess, api: Api, points: list[str]
) -> None:
    server.start(crash_at=points[0])
    attempt = Persistent(server, points[1:])
    task, clients, members = begin(api, attempt)
    stubborn_round(attempt, task, clients, members)
    if attempt.deaths < len(points):  # the round is complete a moment before its blobs are deleted
        attempt.revive()
    assert attempt.deaths == len(points)
    assert_exact(task, server)


@pytest.mark.timeout(300)
def test_oneshot_death_in_the_middle_of_every_stage(server: AggregatorProcess, api: Api) -> None:
    server.start()
    attempt = Persistent(server)
    task, clients, members = begin(api, attempt)

    def restart(place: int) -> None:
        if place == 2:
            server.kill()
            server.start()

    stubborn_round(attempt, task, clients, members, restart)
    assert_exact(task, server)
