"""One process leads at a time: another takes over however the leader ends or hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from aggregator_service.storage.database import dialect_of
from tests.support.api import Api, TestMember, TestTask, contribute
from tests.support.dashboard import sign_in
from tests.support.replicas import Replicas, TestDatabase, connect, running_replicas, wait_until, waits_for_lock
from tests.support.server import AggregatorProcess

COHORT = 7
LEADS, LED = "this process drives the rounds now", "this process no longer drives the rounds"


@contextmanager
def watched(replicas: Replicas, old: AggregatorProcess, *, lock: bool = True) -> Iterator[None]:
    """Check all the time that two servers never lead at once. The old leader is asked last."""
    over, looks, two = threading.Event(), list[list[int]](), list[str]()

    def look() -> None:
        while not over.wait(0.1):
            looks.append(replicas.holders() if lock else [])
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
    task = api.create_task(name, cohort=COHORT)
    members = task.begin(COHORT)
    contribute(members[:5], 1)
    wait_until(lambda: task.round(1)["folded"] == 4, "the first batch is not folded")
    return task, members


def finish(task: TestTask, members: list[TestMember]) -> None:
    """The other clients contribute; check that the sum is that of all clients."""
    contribute(members, 1)
    task.assert_sum(1, (2.0**index for index in range(COHORT)))


def test_exactly_one_server_leads(replicas: Replicas) -> None:
    leader = replicas.leader()
    assert len(replicas.holders()) == 1
    assert LEADS in leader.log()
    for follower in replicas.but(leader):
        assert LEADS not in follower.log()
        assert "another process drives the rounds" in follower.log()


def test_another_server_takes_over_from_a_stopped_leader(replicas: Replicas) -> None:
    leader = replicas.leader()
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
        connection = candidate._connection  # type: ignore[attr-defined]
        set_to = [int(connection.execute(f"SHOW {name}").fetchone()[0]) for name in names]
    finally:
        candidate.resign()
    assert set_to == [3, 1, 3, 6000]


def test_two_servers_on_one_sqlite_file_do_not_both_lead(tmp_path: Path) -> None:
    settings = {"database_url": f"sqlite:///{tmp_path / 'one.db'}", "blobs": f"dir:{tmp_path / 'blobs'}"}
    with running_replicas(tmp_path, 2, fold_batch=4, **settings) as two, two.api() as api:
        leader = two.leader()
        with watched(two, leader, lock=False):
            task, members = begun(api, "sqlite")
        finish(task, members)
        leader.kill()
        assert two.leader() is not leader


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
    """Lock the rows of a table, as a transaction that stands still does."""
    with connect(make_url(url)) as connection, connection.transaction():
        connection.execute(SQL("SELECT id FROM {} FOR UPDATE").format(Identifier(table)))
        yield


def contribute_at_last(members: list[TestMember], number: int) -> None:
    """All contribute, as soon as the server can take it."""
    for index, member in enumerate(members):
        end = time.monotonic() + 120
        body = member.contribution(number, 2.0**index)
        while (answer := member.put(number, body)).status_code == 503:
            assert time.monotonic() < end, answer.text
        assert answer.status_code in (200, 201), answer.text


def readiness(server: AggregatorProcess) -> Any:
    return httpx.get(f"{server.url}/readyz", timeout=60).json()


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
            contribute_at_last(members, 1)
            wait_until(lambda: task.round(1)["state"] == "complete", "the round stands still", 60)
        finally:
            os.kill(leader.pid, signal.SIGCONT)
            extension.join()
        assert len(replicas.leaders()) == 1
        task.wait_round(2, "collecting")
        contribute_at_last(members, 2)
        assert task.wait_round(2, "complete", seconds=60)["survivors"] == 3


def test_readiness_and_dashboard_say_that_rounds_wait_for_a_lock(replicas: Replicas) -> None:
    leader = replicas.leader()
    with replicas.api(leader) as api:
        task = api.create_task("locked", cohort=3)
        members = task.begin(3)
        contribute(members[:-1], 1)
        with locked(replicas.database_url, "tasks"):
            contribute_at_last(members[-1:], 1)  # now the leader wants to fold
            wait_until(lambda: "rounds" in readiness(leader), "/readyz says nothing")
            assert readiness(leader)["rounds"].startswith(
                "1 task cannot go on: another session of the database keeps a lock"
            )
            with httpx.Client(base_url=leader.url) as visitor:
                assert sign_in(visitor, leader.url, leader.operator_token).status_code == 303
                assert "another session of the database keeps a lock" in visitor.get("/dashboard/health").text
        task.wait_round(1, "complete", seconds=60)
        wait_until(lambda: readiness(leader) == {"status": "ready"}, "/readyz still says that rounds wait")
