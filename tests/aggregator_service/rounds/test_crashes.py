"""kill -9 at any point of a round: after a restart the sum is exact.

Contributions are distinct powers of two, so that the sum shows which were lost and which were counted twice.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.crash_points import CRASH_POINTS
from tests.support.api import Api, TestMember, TestTask, digest_field, signed_enrolment
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
    body = signed_enrolment(invitation, Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    answer = attempt(lambda: task.api.http.post("/v1/enrolments", json=body))
    assert answer.status_code in (200, 201), answer.text
    return TestMember(task, answer.json()["client_id"], answer.json()["token"])


def settle(task: TestTask, attempt: Persistent, number: int = 1) -> dict[str, object]:
    """Wait until the round is complete, restarting the server when it dies; return the round."""
    end = time.monotonic() + 100
    while time.monotonic() < end:
        answer = attempt(lambda: task.api.http.get(f"{task.path}/rounds/{number}", headers=task.api.operator))
        if answer.status_code == 200 and answer.json()["state"] == "complete":
            return dict(answer.json())
        time.sleep(0.05)
    raise AssertionError(f"the round does not end:\n{attempt.server.log()[-3000:]}")


def assert_exact(task: TestTask, number: int = 1) -> None:
    total = task.opened(number)
    mask = task.plan.layout.blocks[0].integral_mask()
    assert np.array_equal(total[mask], np.full(mask.sum(), float(COHORT)))
    assert np.allclose(total[~mask], sum(VALUES), atol=1e-6)


def blob_kinds(server: AggregatorProcess) -> Counter[str]:
    return Counter(key.partition("/")[0] for key in server.blobs.keys())  # noqa: SIM118 - a store, not a dict


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
    done = settle(task, attempt)
    if point == "release.committed" and attempt.deaths == 0:
        server.wait_dead()  # the round is complete a moment before its blobs are deleted
        attempt.deaths += 1
        server.start()
    assert attempt.deaths == 1
    assert done["survivors"] == COHORT
    assert_exact(task)
    listed = api.http.get(f"{task.path}/rounds", headers=api.operator).json()["rounds"]
    assert [row["number"] for row in listed] == [1]
    # the orphans of the crash and all contributions are deleted
    assert blob_kinds(server) == {"aggregates": 1, "snapshots": 1}


def test_death_during_an_upload(server: AggregatorProcess, api: Api) -> None:
    server.start()
    task = api.create_task(cohort=COHORT)
    members = task.enrol(COHORT)
    task.wait_round(1, "collecting")
    bodies = [member.contribution(1, value) for member, value in zip(members, VALUES, strict=True)]
    for member, body in zip(members[:2], bodies[:2], strict=True):
        assert member.put(1, body).status_code == 201
    chunk, rest = bodies[2][:20], bodies[2][20:]
    partial = {"Content-Type": "application/partial-upload", **members[2].auth}
    first = {**partial, "Upload-Offset": "0", "Upload-Complete": "?0", "Content-Digest": digest_field(chunk)}
    assert api.http.patch(members[2].path(1), content=chunk, headers=first).status_code == 204
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
    last = {
        **partial,
        "Upload-Offset": "20",
        "Upload-Complete": "?1",
        "Content-Digest": digest_field(rest),
        "Repr-Digest": digest_field(bodies[2]),
    }
    assert api.http.patch(members[2].path(1), content=rest, headers=last).status_code == 201
    for member, body in zip(members, bodies, strict=True):
        assert member.put(1, body).status_code in (200, 201)
    task.wait_round(1, "complete")
    assert_exact(task)


def test_death_between_a_chunk_and_its_row(server: AggregatorProcess, api: Api) -> None:
    """The chunk was not acknowledged, so it is sent again; its first blob is deleted."""
    server.start(crash_at="chunk.stored-before-row")
    attempt = Persistent(server)
    task = api.create_task(cohort=COHORT)
    (member, *_) = task.enrol(COHORT)
    task.wait_round(1, "collecting")
    chunk = member.contribution(1, 1.0)[:50]
    headers = {
        "Content-Type": "application/partial-upload",
        "Upload-Offset": "0",
        "Upload-Complete": "?0",
        "Content-Digest": digest_field(chunk),
        **member.auth,
    }
    answer = attempt(lambda: api.http.patch(member.path(1), content=chunk, headers=headers))
    assert attempt.deaths == 1
    assert (answer.status_code, answer.headers["upload-offset"]) == (204, "50")
    assert blob_kinds(server) == {"chunks": 1}


def worker_of(server: AggregatorProcess) -> psutil.Process:
    """The process id of the fold worker: the child that is not the resource tracker of multiprocessing."""
    children = psutil.Process(server.pid).children()
    (worker,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return worker


def halt_in_folding(server: AggregatorProcess, api: Api) -> tuple[TestTask, psutil.Process]:
    """A round in state folding whose worker is stopped in the middle of the last batch."""
    server.start()
    task = api.create_task(cohort=COHORT)
    members = task.enrol(COHORT)
    task.wait_round(1, "collecting")
    for index, (member, value) in enumerate(zip(members, VALUES, strict=True)):
        if index == 4:  # the first batch of four is folded while other clients upload
            end = time.monotonic() + 30
            while task.round(1)["folded"] < 4:
                assert time.monotonic() < end, "the first batch was not folded while collecting"
                time.sleep(0.02)
            worker_of(server).suspend()
        assert member.put(1, member.contribution(1, value)).status_code == 201
    assert task.wait_round(1, "folding")["folded"] == 4
    return task, worker_of(server)


def test_death_while_folding(server: AggregatorProcess, api: Api) -> None:
    task, worker = halt_in_folding(server, api)
    server.kill()
    worker.resume()  # the worker has no server now: it must exit, and what it writes must not count
    server.start()
    assert task.wait_round(1, "complete")["survivors"] == COHORT
    assert_exact(task)
    worker.wait(timeout=15)


def test_a_fold_worker_that_dies_is_replaced(server: AggregatorProcess, api: Api) -> None:
    task, worker = halt_in_folding(server, api)
    os.kill(worker.pid, signal.SIGKILL)
    assert task.wait_round(1, "complete")["survivors"] == COHORT
    assert_exact(task)


def test_two_servers_never_share_a_data_directory(server: AggregatorProcess, tmp_path: Path) -> None:
    server.start()
    second = AggregatorProcess(tmp_path / "data")
    with pytest.raises(RuntimeError, match="another server runs"):
        second.start()
    assert "Traceback" not in second.log()
    second.stop()
