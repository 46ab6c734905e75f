"""Three servers on one PostgreSQL and one S3: one leads, however the last leader ended; rounds go over all of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from aggregator_service.storage.database import dialect_of
from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.api.http import SyncDriver
from client_sdk.rounds.events import Event, RoundReport, TaskEnded
from tests.support.api import Api, TestMember, TestTask, contribute
from tests.support.dashboard import sign_in
from tests.support.masked import enrol_masked, masked_task, play
from tests.support.needs import required
from tests.support.replicas import (
    Replicas,
    RoundRobin,
    TestDatabase,
    connect,
    running_replicas,
    wait_until,
    waits_for_lock,
)
from tests.support.server import TLS, AggregatorProcess, free_port
from tests.support.tasks import interactions, small_task

COHORT = 7
VALUES = [2.0**index for index in range(COHORT)]
LEADS, LED = "this process drives the rounds now", "this process no longer drives the rounds"


@pytest.fixture(scope="module")
def replicas(
    postgres: TestDatabase, new_prefix: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    """They run for a whole module; a test that stops one of them starts it again."""
    settings = {
        "database_url": postgres.schema(),
        "blobs": new_prefix(),
        "fold_batch": 4,
        "recheck_seconds": 1.0,
        "test_spawns_workers": 1,
    }
    with running_replicas(tmp_path_factory.mktemp("replicas"), **settings) as running:
        yield running


@pytest.fixture
def api(replicas: Replicas) -> Iterator[Api]:
    """An operator and its clients, each of whose requests goes to another server."""
    with replicas.api() as made:
        yield made


@contextmanager
def watched(replicas: Replicas, old: AggregatorProcess) -> Iterator[None]:
    """Check all the time that two servers never lead at once. The old leader is asked last."""
    over, looks, two = threading.Event(), list[list[int]](), list[str]()

    def look() -> None:
        while not over.wait(0.2):
            looks.append(replicas.holders())
            if len(looks[-1]) > 1:
                two.append(f"the lock is held by {looks[-1]}")
            others = [server.port for server in replicas.but(old) if replicas.leading(server)]
            if others and replicas.leading(old):
                two.append(f"{others} and {old.port} lead")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert looks and not two, two


def begun(api: Api, name: str) -> tuple[TestTask, list[TestMember]]:
    """A round in which most clients have contributed and the first batch is folded."""
    task, members = api.begin(COHORT, name)
    contribute(members[:5], 1)
    wait_until(lambda: task.round(1)["folded"] == 4, "the first batch is not folded")
    return task, members


def finish(task: TestTask, members: list[TestMember]) -> None:
    """The other clients contribute; check that the sum is that of all clients."""
    contribute(members, 1)
    task.assert_sum(1, VALUES)


def test_exactly_one_server_leads_and_another_takes_over_when_it_stops(replicas: Replicas) -> None:
    leader = replicas.leader()
    assert len(replicas.holders()) == 1
    assert LEADS in leader.log()
    for follower in replicas.but(leader):
        assert LEADS not in follower.log()
        assert "another process drives the rounds" in follower.log()
    with replicas.api(*replicas.but(leader)) as api, watched(replicas, leader):
        task, members = begun(api, "stopped")
        leader.stop()
        wait_until(lambda: bool(replicas.leaders()), "nobody took over")
        finish(task, members)
    assert "cannot query the leader lock" not in leader.log()
    assert leader.log().count(LED) == 1
    leader.start()
    assert len(replicas.leaders()) == 1


def test_a_leader_that_loses_its_connection_stops_leading(replicas: Replicas, api: Api) -> None:
    leader = replicas.leader()
    task, members = begun(api, "cut")
    before = leader.log().count(LED)
    (backend,) = replicas.holders()
    with watched(replicas, leader):
        with connect(make_url(replicas.database_url)) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (backend,))
        wait_until(lambda: leader.log().count(LED) == before + 1, "the leader goes on")
        wait_until(lambda: len(replicas.leaders()) == 1, "nobody leads")
        assert backend not in replicas.holders()
        finish(task, members)


def test_a_leader_that_hangs_is_replaced_and_changes_nothing_later(replicas: Replicas) -> None:
    """When it continues it considers itself the leader, and has the result of a fold to commit."""
    leader = replicas.leader()
    with replicas.api(*replicas.but(leader)) as api:
        task, members = begun(api, "still")
        worker = leader.fold_worker()
        worker.suspend()
        contribute(members, 1)
        task.wait_round(1, "folding")
        os.kill(leader.pid, signal.SIGSTOP)
        worker.resume()
        wait_until(lambda: any(map(replicas.leading, replicas.but(leader))), "nobody took over")
        finish(task, members)
        released = task.round(1)
        os.kill(leader.pid, signal.SIGCONT)
        wait_until(lambda: leader.log().rfind(LED) > leader.log().rfind(LEADS), "it goes on")
        assert task.round(1) == released
        assert len(replicas.leaders()) == 1


def test_postgresql_ends_the_session_of_a_leader_that_disappeared(postgres: TestDatabase) -> None:
    """Its machine answers no probe: the session ends within 6 seconds, not after the kernel's default of hours."""
    dialect, parsed = dialect_of(postgres.schema())
    candidate = dialect.candidacy(parsed)
    assert candidate.leads()
    names = "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"
    try:
        connection = candidate._connection
        set_to = [int(connection.execute(f"SHOW {name}").fetchone()[0]) for name in names]
    finally:
        candidate.resign()
    assert set_to == [3, 1, 3, 6000]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_candidate_that_resigns_while_it_waits(kind: str, tmp_path: Path, postgres: TestDatabase) -> None:
    url = postgres.schema() if kind == "postgresql" else f"sqlite:///{tmp_path / 'test.db'}"
    dialect, parsed = dialect_of(url)
    first, second = dialect.candidacy(parsed), dialect.candidacy(parsed)
    assert [first.leads(), second.leads(), first.leads()] == [True, False, True]
    asked = list[bool]()
    thread = threading.Thread(target=lambda: asked.append(first.leads(wait=60.0)))
    thread.start()
    assert not second.leads(wait=0.2)
    first.resign()
    thread.join()
    assert asked == [False]
    wait_until(second.leads, "the lock is not free")
    assert not first.leads()
    first.resign()
    second.resign()


@contextmanager
def locked(url: str, table: str) -> Iterator[None]:
    with connect(make_url(url)) as connection, connection.transaction():
        connection.execute(SQL("SELECT id FROM {} FOR UPDATE").format(Identifier(table)))
        yield


def readiness(server: AggregatorProcess) -> Any:
    return httpx.get(f"{server.url}/readyz", timeout=60, verify=TLS).json()


def extend(url: str, operator: dict[str, str]) -> None:
    with suppress(httpx.HTTPError):
        httpx.post(url, json={"seconds": 60}, headers=operator, timeout=300)


def test_a_leader_that_hangs_in_a_transaction_is_replaced(replicas: Replicas) -> None:
    leader = replicas.leader()
    others = replicas.but(leader)
    with replicas.api(*others) as api:
        task: TestTask = api.create_task("hangs", cohort=3, rounds=2)
        members = task.begin(3)
        contribute(members[:-1], 1)
        with locked(replicas.database_url, "rounds"):
            extension = threading.Thread(target=extend, args=(f"{leader.url}{task.path}/rounds/1/extend", api.operator))
            extension.start()  # the leader's transaction locks the task, and waits for the round
            wait_until(lambda: waits_for_lock(make_url(replicas.database_url)), "the leader asks for no lock")
            os.kill(leader.pid, signal.SIGSTOP)
        # the leader has both locks now, and does not go on
        try:
            wait_until(lambda: any(map(replicas.leading, others)), "nobody took over", 60)
            contribute(members, 1, patience=120.0)
            wait_until(lambda: task.round(1)["state"] == "complete", "the round stands still", 60)
        finally:
            os.kill(leader.pid, signal.SIGCONT)
            extension.join()
        assert len(replicas.leaders()) == 1
        task.wait_round(2, "collecting")
        contribute(members, 2, patience=120.0)
        assert task.wait_round(2, "complete", seconds=60)["survivors"] == 3


def test_readiness_and_dashboard_say_that_rounds_wait_for_a_lock(replicas: Replicas) -> None:
    leader = replicas.leader()
    with replicas.api(leader) as api:
        task, members = api.begin(3, "locked")
        contribute(members[:-1], 1)
        with locked(replicas.database_url, "tasks"):
            contribute(members[-1:], 1, patience=120.0)  # now the leader wants to fold
            wait_until(lambda: "rounds" in readiness(leader), "/readyz says nothing")
            assert readiness(leader)["rounds"].startswith(
                "1 task cannot go on: another session of the database keeps a lock"
            )
            with httpx.Client(base_url=leader.url) as visitor:
                assert sign_in(visitor, leader.url, leader.operator_token).status_code == 303
                assert "another session of the database keeps a lock" in visitor.get("/dashboard/health").text
        task.wait_round(1, "complete", seconds=60)
        wait_until(lambda: readiness(leader) == {"status": "ready"}, "/readyz still says that rounds wait")


def test_a_masked_round_with_a_dropout(api: Api) -> None:
    task = masked_task(api, "masked", 6)
    play(task, enrol_masked(task, 6), drop={5: "contribute"})
    task.assert_sum(1, VALUES[:5])


def test_a_chunked_upload_whose_chunks_go_to_different_replicas(api: Api, replicas: Replicas) -> None:
    task, members = api.begin(COHORT, "chunked", items=40)
    body = members[0].contribution(1, 1.0)
    spans = list(pairwise([*range(0, len(body), len(body) // 5), len(body)]))
    for index, (start, end) in enumerate(spans):
        last = index == len(spans) - 1
        assert members[0].offset() == start
        answer = members[0].piece(start, body[start:end], body if last else None)
        assert answer.status_code == (201 if last else 204), answer.text
        assert replicas.servers[0].kinds()["chunks"] == (0 if last else index + 1)
    contribute(members, 1)
    task.assert_sum(1, VALUES)
    for server in replicas.servers:
        assert not list((server.data_dir / "uploads").iterdir())


USERS, ROUNDS = 3, 2


@pytest.mark.timeout(300)
def test_no_participant_ends_when_the_leader_is_killed(replicas: Replicas) -> None:
    leader, ended, told = replicas.leader(), threading.Event(), list[Event]()

    def kill_after_the_first(event: Event) -> None:
        told.append(event)
        if isinstance(event, RoundReport) and event.round == 1:
            leader.kill()

    url = leader.url  # each request goes to the next server that accepts it
    with Operator(url, leader.operator_token) as operator, ThreadPoolExecutor(USERS) as pool:
        task = small_task(operator, "survives", users=USERS, rounds=ROUNDS)

        def one(index: int) -> list[RoundReport]:
            policy = Policy(mechanisms={"plain"})
            with (
                SyncDriver(transport=RoundRobin(replicas.servers)) as driver,
                Client(url, Identity.generate(), MemoryStore(), policy, driver=driver) as client,
            ):
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ahead", [120, -120])
def test_a_replica_with_a_wrong_clock_ends_no_participant(ahead: int, postgres: TestDatabase, tmp_path: Path) -> None:
    """Every other request of a member reaches it. It starts first, so that it would lead."""
    serve = [sys.executable, "-m", "aggregator_service.cli", "serve"]
    changed = [f"LD_PRELOAD={required('libfaketime')}", f"FAKETIME={ahead:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
    command = ["/usr/bin/env", *changed, *serve]  # which becomes the server, so that `stop` ends it
    ports = [free_port(), free_port()]
    shared: dict[str, Any] = {
        "database_url": postgres.schema(),
        "blobs": f"dir:{tmp_path / 'blobs'}",
        "public_origins": ",".join(f"http://127.0.0.1:{port}" for port in ports),
    }
    wrong = AggregatorProcess(tmp_path / "wrong", port=ports[0], command=command, **shared)
    right = AggregatorProcess(tmp_path / "right", port=ports[1], **shared)
    replicas = Replicas([wrong, right])
    try:
        wrong.launch()
        wait_until(lambda: "aggregator ready" in wrong.log(), "it does not start")
        right.start()
        assert replicas.leader() is right
        seconds, _, direction = readiness(wrong)["detail"].removeprefix("the clock is ").partition(" s ")
        assert abs(float(seconds) - abs(ahead)) < 5, "measured beside other work"
        assert direction.startswith("ahead of the database's" if ahead > 0 else "behind the database's")
        with Operator(right.url, right.operator_token) as operator, ThreadPoolExecutor(USERS) as pool:
            task = small_task(operator, "clocks", users=USERS, rounds=ROUNDS, collect_seconds=250)

            def one(index: int) -> list[int]:
                policy = Policy(mechanisms={"plain"})
                with (
                    SyncDriver(transport=RoundRobin(replicas.servers)) as driver,
                    Client(right.url, Identity.generate(), MemoryStore(), policy, driver=driver) as client,
                ):
                    part = client.join("clocks", invitation=task.invitation, seed=index)
                    return [report.round for report in part.take_part(interactions(USERS)[index], poll_seconds=5.0)]

            assert list(pool.map(one, range(USERS))) == [list(range(1, ROUNDS + 1))] * USERS
        assert LEADS not in wrong.log()
        assert "stale-signature" not in wrong.log() + right.log()
    finally:
        wrong.stop()
        right.stop()
