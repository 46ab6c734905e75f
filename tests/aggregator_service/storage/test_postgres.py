"""PostgreSQL with several writers: notifications, deadlocks, lost connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from aggregator_service.commands.options import in_transaction
from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage.database import Announcement, Database, Delivery, Effects, announce, progress
from aggregator_service.storage.dialects import database_cause
from aggregator_service.storage.round_rows import lock_task
from aggregator_service.storage.schema import TaskRow
from tests.support.replicas import TestDatabase, wait_until
from tests.support.world import task_row


@pytest.fixture
def url(postgres: TestDatabase) -> str:
    return postgres.schema()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url, connections=4)
    migrate(made)
    with made.write() as session:
        session.add_all([task_row("t_1"), task_row("t_2")])
    yield made
    made.close()


class Listener:
    """Collects announcements, as a second API process receives them."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, connections=1)
        self.received: list[Announcement] = []
        self.stop = self.database.listen(self.received.append)

    def hears(self, sender: Database, task_id: str) -> None:
        """Announce until it has received one."""

        def heard() -> bool:
            with sender.write() as session:
                announce(session, task_id, "round")
            time.sleep(0.1)
            return bool(self.received)

        wait_until(heard, "no announcement was received")


@pytest.fixture
def listener(database: Database, url: str) -> Iterator[Listener]:
    made = Listener(url)
    made.hears(database, "t_2")
    time.sleep(0.1)
    made.received.clear()
    yield made
    made.stop()
    made.database.close()


def test_another_process_is_notified_of_commits_and_of_nothing_else(database: Database, listener: Listener) -> None:
    with pytest.raises(RuntimeError), database.write() as session:
        announce(session, "t_1", "round")
        raise RuntimeError("stop")
    with database.write() as session:
        progress(session, Delivery("t_1", 1, "contribute", "c_1"))
    with listener.database.write() as session:
        announce(session, "t_1", "round")
    with database.write() as session:
        announce(session, "t_1", "members")
    with database.write() as session:
        announce(session, "t_1", "round", "members")
    told = [Announcement("t_1", ("members",), 2), Announcement("t_1", ("round", "members"), 3)]
    wait_until(lambda: listener.received == told, "other announcements were received")


def test_a_listener_reconnects(database: Database, listener: Listener, postgres: TestDatabase) -> None:
    postgres.cut_off()
    listener.hears(database, "t_1")


def cross(transact: Callable[[Callable[[Session], None]], None], take: Callable[[Session, str], None]) -> int:
    """Two transactions take two tasks in opposite order, and meet between; return how often work was tried."""
    barrier, tries = threading.Barrier(2, timeout=10), list[str]()

    def run(pair: tuple[str, str]) -> None:
        met = False

        def work(session: Session) -> None:
            nonlocal met
            tries.append(pair[0])
            take(session, pair[0])
            session.flush()
            if not met:
                met = True
                barrier.wait()
            take(session, pair[1])

        transact(work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, (("t_1", "t_2"), ("t_2", "t_1"))))
    return len(tries)


@pytest.mark.parametrize("caller", ["service", "command"])
def test_a_deadlock_is_tried_again(database: Database, url: str, tmp_path: Path, caller: str) -> None:
    """One of the two is rolled back and tried again. Both take effect once, and so do their announcements."""
    received: list[Effects] = []
    database.listeners.append(received.append)

    def count(session: Session, task_id: str) -> None:
        lock_task(session, task_id).completed_rounds += 1
        announce(session, task_id, "round")

    tries = cross(database.transact if caller == "service" else partial(in_transaction, tmp_path, url), count)
    assert tries >= 3  # on a busy machine the second try can meet the other one again
    with database.read() as session:
        assert [session.get_one(TaskRow, task).completed_rounds for task in ("t_1", "t_2")] == [2, 2]
    versions = [1, 1, 2, 2] if caller == "service" else []  # a command has a database object of its own
    assert sorted(one.version for effects in received for one in effects.announcements) == versions


def test_a_transaction_that_stood_still_is_tried_again(database: Database) -> None:
    """PostgreSQL ends the session of a process that hangs, so that others get its locks."""
    tries: list[int] = []

    def hang(session: Session) -> None:
        session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '100ms'"))
        time.sleep(0.5)
        session.execute(text("SELECT 1"))

    def work(session: Session) -> None:
        lock_task(session, "t_1").completed_rounds += 1
        session.flush()
        tries.append(1)
        if len(tries) == 1:
            hang(session)

    database.transact(work)
    assert len(tries) == 2
    with database.read() as session:
        assert session.get_one(TaskRow, "t_1").completed_rounds == 1
    with pytest.raises(OperationalError) as caught, database.read() as session:
        hang(session)
    assert "stood still" in database_cause(caught.value)  # it counts as a lost connection
    database.ping()


def test_only_transient_errors_are_tried_again(database: Database) -> None:
    tries = []

    def work(session: Session) -> None:
        tries.append(1)
        session.add(task_row("t_1"))

    with pytest.raises(DBAPIError):
        database.transact(work)
    assert len(tries) == 1


def test_processes_that_start_together_migrate_once(postgres: TestDatabase) -> None:
    databases = [Database(postgres.schema(), connections=1)]
    databases += [Database(databases[0].engine.url.render_as_string(hide_password=False)) for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, databases))
    for database in databases:
        database.ping()
        database.close()
