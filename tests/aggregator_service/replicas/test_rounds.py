"""Requests of clients and participants go to any replica: the sums of all kinds of rounds are exact."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import cycle, pairwise
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.rounds.events import Event, RoundReport, TaskEnded
from tests.support.api import Api, TestTask, contribute, refusal
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.replicas import Replicas, wait_until
from tests.support.tasks import interactions, small_task

COHORT = 5
VALUES = [2.0**index for index in range(COHORT)]


def chunk_keys(replicas: Replicas, task: TestTask) -> list[str]:
    return [key for key in replicas.servers[0].blobs.keys() if key.startswith(f"chunks/{task.id}-")]  # noqa: SIM118


def test_a_masked_round_with_a_dropout(api: Api) -> None:
    task = masked_task(api, "masked", 6)
    play(task, enrol_masked(task, 6), drop={5: "contribute"})
    task.assert_sum(1, VALUES)


def test_a_chunked_upload_whose_chunks_go_to_different_replicas(api: Api, replicas: Replicas) -> None:
    task = api.create_task("chunked", cohort=COHORT, items=40)
    members = task.begin(COHORT)
    body = members[0].contribution(1, 1.0)
    spans = list(pairwise([*range(0, len(body), len(body) // 5), len(body)]))
    for index, (start, end) in enumerate(spans):
        last = index == len(spans) - 1
        assert members[0].offset() == start
        answer = members[0].piece(start, body[start:end], body if last else None)
        assert answer.status_code == (201 if last else 204), answer.text
        assert len(chunk_keys(replicas, task)) == (0 if last else index + 1)
    contribute(members, 1)
    task.assert_sum(1, VALUES)
    for server in replicas.servers:
        assert not list((server.data_dir / "uploads").iterdir())


def test_the_end_of_a_round_deletes_chunks_that_another_replica_stored(api: Api, replicas: Replicas) -> None:
    task = api.create_task("abandoned", cohort=COHORT)
    (member, *_) = task.begin(COHORT)
    chunk = member.contribution(1, 1.0)[:40]
    assert member.piece(0, chunk).status_code == 204
    assert len(chunk_keys(replicas, task)) == 1
    task.close()
    assert not chunk_keys(replicas, task)
    assert refusal(member.piece(40, chunk)) == (409, "round-closed")


def test_a_follower_notifies_the_leader(replicas: Replicas) -> None:
    """The leader folds what a follower receives at once, before its next regular read."""
    leader = replicas.leader()
    follower, _ = replicas.but(leader)
    with replicas.api(follower) as api:
        task = api.create_task("woken", cohort=COHORT)
        contribute(task.begin(COHORT), 1)
        task.assert_sum(1, VALUES)
    wait_until(lambda: "round complete" in leader.log(), "the leader drove no round")
    assert "round complete" not in follower.log()[follower.log().rfind("another process drives the rounds") :]


USERS, ROUNDS = 4, 3


def pump(source: socket.socket, target: socket.socket) -> None:
    """Forward what arrives until the connection ends."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def balanced(replicas: Replicas) -> Iterator[str]:
    """The address of a balancer: each connection goes to the next server that accepts it, and ends with it."""
    ports = cycle([server.port for server in replicas.servers])

    class Forward(BaseRequestHandler):
        def handle(self) -> None:
            for _ in replicas.servers:
                with suppress(OSError), socket.create_connection(("127.0.0.1", next(ports))) as other:
                    back = threading.Thread(target=pump, args=(other, self.request))
                    back.start()
                    pump(self.request, other)
                    back.join()
                    return

    with ThreadingTCPServer(("127.0.0.1", replicas.front), Forward) as front:
        thread = threading.Thread(target=front.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{replicas.front}"
        front.shutdown()
        thread.join()


@pytest.mark.timeout(300)
def test_no_participant_ends_when_the_leader_is_killed(replicas: Replicas) -> None:
    leader, ended, told = replicas.leader(), threading.Event(), list[Event]()

    def kill_after_the_first(event: Event) -> None:
        told.append(event)
        if isinstance(event, RoundReport) and event.round == 1:
            leader.kill()

    with balanced(replicas) as url, ThreadPoolExecutor(USERS) as pool:
        with Operator(url, leader.operator_token) as operator:
            task = small_task(operator, "survives", users=USERS, rounds=ROUNDS)

        def one(index: int) -> list[RoundReport]:
            with Client(url, Identity.generate(), MemoryStore(), Policy(mechanisms={"plain"})) as client:
                part = client.join("survives", invitation=task.invitation, seed=index)
                on_event = kill_after_the_first if index == 0 else None
                return part.take_part(interactions(USERS)[index], on_event, ended.is_set, poll_seconds=5.0)

        parts = [pool.submit(one, index) for index in range(USERS)]
        try:
            reports = [part.result(timeout=200.0) for part in parts]
        finally:
            ended.set()
    assert [[report.round for report in mine] for mine in reports] == [list(range(1, ROUNDS + 1))] * USERS
    assert isinstance(told[-1], TaskEnded)
    assert not leader.running
