"""SQLite and PostgreSQL: what the service relies on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.clock import SystemClock
from aggregator_service.migrations.migrate import migrate
from aggregator_service.polling.cache import TaskCache
from aggregator_service.polling.notifier import Notifier
from aggregator_service.storage.database import Announcement, Database, Effects, announce, discard
from aggregator_service.storage.rounds import lock_round_exclusive, lock_round_shared, lock_task
from aggregator_service.storage.schema import ClientRow, CohortRow, RoundRow, TaskRow
from protocols.errors import ParameterError
from tests.support.postgres import TestDatabase
from tests.support.rows import client_row, round_row, task_row


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, connections=6)
    migrate(made)
    yield made
    made.close()


def test_a_failed_transaction_has_no_effects(database: Database) -> None:
    heard: list[Effects] = []
    database.listeners.append(heard.append)

    def work(session: Session) -> None:
        session.add(task_row("t_1"))
        session.flush()
        announce(session, "t_1", "round")
        discard(session, "partials/t_1-1-x")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        database.transact(work)
    assert heard == []
    with database.read() as session:
        assert session.get(TaskRow, "t_1") is None


def test_effects_follow_the_commit(database: Database) -> None:
    seen: list[tuple[Effects, bool]] = []

    def look(effects: Effects) -> None:
        with database.read() as session:
            seen.append((effects, session.get(TaskRow, "t_1") is not None))

    database.listeners.append(look)

    def work(session: Session) -> str:
        session.add(task_row("t_1"))
        session.flush()
        announce(session, "t_1", "round", "members")
        return "done"

    assert database.transact(work) == "done"
    ((effects, committed),) = seen
    assert committed
    assert effects.announcements == [Announcement("t_1", ("round", "members"), 1)]


def test_a_reader_sees_one_state(database: Database) -> None:
    with database.write() as session:
        session.add(task_row("t_1"))
    with database.read() as session:
        assert session.scalars(select(TaskRow.id)).all() == ["t_1"]
        with database.write() as other:
            other.add(task_row("t_2"))
        assert session.scalars(select(TaskRow.id)).all() == ["t_1"]
    with database.read() as session:
        assert len(session.scalars(select(TaskRow.id)).all()) == 2


def test_foreign_keys_are_enforced(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(client_row("c_1", task_id="t_nowhere"))
    with database.write() as session:
        session.add(task_row("t_1"))
        session.flush()
        session.add(client_row("c_1", role="holder"))
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(client_row("c_2", role="holder"))
    with database.read() as session:
        assert session.scalars(select(ClientRow.id)).all() == ["c_1"]


def test_concurrent_increments_under_a_lock_are_all_counted(database: Database) -> None:
    with database.write() as session:
        session.add(task_row("t_1"))

    def count(session: Session) -> None:
        lock_task(session, "t_1").completed_rounds += 1

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: database.transact(count), range(30)))
    with database.read() as session:
        assert session.get_one(TaskRow, "t_1").completed_rounds == 30


def _with_round(database: Database) -> int:
    with database.write() as session:
        session.add(task_row("t_1"))
        session.flush()
        session.add_all([client_row("c_1"), client_row("c_2")])
        round_ = round_row()
        session.add(round_)
        session.flush()
        session.add_all([CohortRow(round_id=round_.id, client_id=client) for client in ("c_1", "c_2")])
        return round_.id


def test_a_round_does_not_change_state_during_a_message(database: Database) -> None:
    """While a transaction stores a message, its round stays in the state until the commit."""
    round_id = _with_round(database)
    held, moved = threading.Event(), threading.Event()

    def end(session: Session) -> None:
        _, round_ = lock_round_exclusive(session, round_id)
        round_.state = "folding"

    def mover() -> None:
        held.wait(10)
        database.transact(end)
        moved.set()

    thread = threading.Thread(target=mover)
    thread.start()
    with database.write() as session:
        assert lock_round_shared(session, round_id, "c_1").state == "collecting"
        held.set()
        assert not moved.wait(0.3)
        session.add(task_row("t_2"))
    assert moved.wait(10)
    thread.join()
    with database.read() as session:
        assert session.get_one(RoundRow, round_id).state == "folding"


def test_two_requests_of_one_client_wait_for_each_other(database: Database) -> None:
    round_id = _with_round(database)
    inside, most = 0, 0
    lock = threading.Lock()

    def request(session: Session) -> None:
        nonlocal inside, most
        lock_round_shared(session, round_id, "c_1")
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with lock:
            inside -= 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: database.transact(request), range(6)))
    assert most == 1


@pytest.mark.parametrize("by_another_process", [False, True])
def test_a_long_poll_ends_with_a_change(database: Database, database_url: str, by_another_process: bool) -> None:
    with database.write() as session:
        session.add(task_row("t_1"))
    other = Database(database_url, connections=1)

    async def scenario() -> bool | None:
        loop = asyncio.get_running_loop()
        notifier = Notifier(database, TaskCache(database, SystemClock(), 0.05), recheck=0.05)
        watch = asyncio.create_task(notifier.watch())

        def hear(effects: Effects) -> None:
            for announcement in effects.announcements:
                loop.call_soon_threadsafe(notifier.announce, announcement)

        database.listeners.append(hear)
        changed = threading.Event()

        def change() -> None:
            changed.set()
            with (other if by_another_process else database).write() as session:
                announce(session, "t_1", "round")

        loop.call_later(0.2, lambda: threading.Thread(target=change).start())
        found = await notifier.poll("t_1", "round", 20.0, lambda: True if changed.is_set() else None)
        watch.cancel()
        return found

    assert asyncio.run(scenario()) is True
    other.close()


def test_a_long_poll_without_a_change_returns_none(database: Database) -> None:
    async def scenario() -> object:
        notifier = Notifier(database, TaskCache(database, SystemClock(), 1.0), recheck=1.0)
        return await notifier.poll("t_1", "round", 0.05, lambda: None)

    assert asyncio.run(scenario()) is None


def test_sqlite_is_durable_and_strict(tmp_path_factory: pytest.TempPathFactory) -> None:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('db') / 'test.db'}")
    with database.engine.connect() as connection:
        for pragma, value in (("journal_mode", "wal"), ("foreign_keys", 1), ("synchronous", 2)):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == value
    database.close()


def test_postgresql_is_durable_and_limits_waiting(postgres: TestDatabase) -> None:
    url = postgres.schema()
    postgres.execute(url, f"ALTER DATABASE {postgres.name} SET synchronous_commit = off")
    database = Database(url)
    try:
        with database.engine.connect() as connection:
            for name, value in (("synchronous_commit", "on"), ("lock_timeout", "15s")):
                assert connection.exec_driver_sql(f"SHOW {name}").scalar_one() == value
    finally:
        postgres.execute(url, f"ALTER DATABASE {postgres.name} RESET synchronous_commit")
        database.close()


@pytest.mark.parametrize("url", ["mysql://root@localhost/x", "not a url", "", "sqlite://"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ParameterError, match="database"):
        Database(url)


def test_a_connection_that_is_in_use_when_the_database_closes_is_closed_when_it_is_returned(database: Database) -> None:
    with database.read() as session:
        connection = session.connection().connection.driver_connection
        database.close()
        session.execute(select(TaskRow.id)).all()
    with pytest.raises(Exception, match="closed"):
        connection.execute("SELECT 1")
