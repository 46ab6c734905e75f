"""A replica that hangs in the middle of a transaction keeps its locks for seconds; the rounds go on without it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from tests.support.api import TestMember, TestTask
from tests.support.dashboard import sign_in
from tests.support.postgres import TestDatabase, connect, waits_for_lock
from tests.support.replicas import Replicas, running_replicas, wait_until
from tests.support.server import AggregatorProcess

COHORT = 3


@pytest.fixture
def two(postgres: TestDatabase, tmp_path: Path) -> Iterator[Replicas]:
    settings = {"database_url": postgres.schema(), "blobs": f"dir:{tmp_path / 'blobs'}"}
    with running_replicas(tmp_path, 2, **settings) as running:
        yield running


@contextmanager
def locked(url: str, table: str) -> Iterator[None]:
    """Lock the rows of a table, as a transaction that stands still does."""
    with connect(make_url(url)) as connection, connection.transaction():
        connection.execute(SQL("SELECT id FROM {} FOR UPDATE").format(Identifier(table)))
        yield


def contribute(members: list[TestMember], number: int) -> None:
    for index, member in enumerate(members):
        end = time.monotonic() + 120
        body = member.contribution(number, 2.0**index)
        while (answer := member.put(number, body)).status_code == 503:
            assert time.monotonic() < end, answer.text
        assert answer.status_code in (200, 201), answer.text


def readiness(server: AggregatorProcess) -> dict[str, str]:
    return dict(httpx.get(f"{server.url}/readyz", timeout=60).json())


def extend(url: str, operator: dict[str, str]) -> None:
    with suppress(httpx.HTTPError):
        httpx.post(url, json={"seconds": 60}, headers=operator, timeout=300)


def test_a_leader_that_hangs_in_a_transaction_is_replaced(two: Replicas) -> None:
    leader = two.leader()
    (other,) = (server for server in two.servers if server is not leader)
    with two.api(other) as api:
        task: TestTask = api.create_task("hangs", cohort=COHORT, rounds=2)
        members = task.enrol(COHORT)
        task.wait_round(1, "collecting")
        contribute(members[:-1], 1)
        with locked(two.database_url, "rounds"):
            extension = threading.Thread(target=extend, args=(f"{leader.url}{task.path}/rounds/1/extend", api.operator))
            extension.start()  # the leader's transaction locks the task, and waits for the round
            wait_until(lambda: waits_for_lock(make_url(two.database_url)), "the leader asks for no lock")
            os.kill(leader.pid, signal.SIGSTOP)
        # the leader has both locks now, and does not go on
        try:
            seconds = wait_until(lambda: two.leading(other), "nobody took over", 60)
            print(f"another one leads after {seconds:.2f} s")
            contribute(members, 1)
            seconds = wait_until(lambda: task.round(1)["state"] == "complete", "the round stands still", 60)
            print(f"its round is complete after {seconds:.2f} s more")
        finally:
            os.kill(leader.pid, signal.SIGCONT)
            extension.join()
        assert len(two.leaders()) == 1
        task.wait_round(2, "collecting")
        contribute(members, 2)
        assert task.wait_round(2, "complete", seconds=60)["survivors"] == COHORT


def test_readiness_and_dashboard_say_that_rounds_wait_for_a_lock(two: Replicas) -> None:
    leader = two.leader()
    with two.api(leader) as api:
        task = api.create_task("locked", cohort=COHORT)
        members = task.enrol(COHORT)
        task.wait_round(1, "collecting")
        contribute(members[:-1], 1)
        with locked(two.database_url, "tasks"):
            contribute(members[-1:], 1)  # now the leader wants to fold
            wait_until(lambda: "rounds" in readiness(leader), "/readyz says nothing")
            assert readiness(leader)["rounds"].startswith(
                "1 task cannot go on: another session of the database keeps a lock"
            )
            with httpx.Client(base_url=leader.url) as visitor:
                assert sign_in(visitor, leader.url, leader.operator_token).status_code == 303
                assert "another session of the database keeps a lock" in visitor.get("/dashboard/health").text
        task.wait_round(1, "complete", seconds=60)
        wait_until(lambda: readiness(leader) == {"status": "ready"}, "/readyz still says that rounds wait")
