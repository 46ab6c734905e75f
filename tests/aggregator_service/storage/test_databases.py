"""SQLite and PostgreSQL: what the service relies on; and every schema revision can be upgraded to the newest.

A new revision needs no new test: the rows are generated from the tables of each revision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    inspect,
    select,
)  # fmt: skip
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.types import JSON, TypeEngine

import aggregator_service.migrations
from aggregator_service.migrations.migrate import alembic_config, migrate
from aggregator_service.storage.database import Announcement, Database, Effects, announce, discard
from aggregator_service.storage.dialects import SQLite
from aggregator_service.storage.round_rows import lock_round_exclusive, lock_round_shared, lock_task
from aggregator_service.storage.schema import Base, ClientRow, CohortRow, RoundRow, TaskRow
from tests.support.replicas import TestDatabase
from tests.support.world import client_row, round_row, task_row


def test_effects_follow_the_commit_and_a_failed_transaction_has_none(database: Database) -> None:
    seen: list[tuple[Effects, bool]] = []

    def look(effects: Effects) -> None:
        with database.read() as session:
            seen.append((effects, session.get(TaskRow, "t_1") is not None))

    def work(session: Session) -> str:
        session.add(task_row("t_1"))
        session.flush()
        announce(session, "t_1", "round", "members")
        return "done"

    def fail(session: Session) -> None:
        discard(session, "partials/t_1-1-x")
        work(session)
        raise RuntimeError("stop")

    database.listeners.append(look)
    with pytest.raises(RuntimeError, match="stop"):
        database.transact(fail)
    assert seen == []
    assert database.transact(work) == "done"
    ((effects, committed),) = seen
    assert committed
    assert (effects.announcements, effects.orphans) == ([Announcement("t_1", ("round", "members"), 1)], [])


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


_TASKS = select(TaskRow.id).order_by(TaskRow.id)


def test_rows_are_those_of_the_moment(database: Database) -> None:
    """The connections that are kept for single statements hold no older state."""
    for number in range(3):
        with database.write() as session:
            session.add(task_row(f"t_{number}"))
        assert [row.id for row in database.rows(_TASKS, {})] == [f"t_{one}" for one in range(number + 1)]


def test_rows_are_read_again_over_an_ended_connection(postgres: TestDatabase, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Database(postgres.schema(), connections=4)) as database:
        migrate(database)
        database.transact(lambda session: session.add(task_row("t_1")))
        with ThreadPoolExecutor(4) as threads:
            for _ in range(3):
                found = list(threads.map(lambda _: database.rows(_TASKS, {}), range(8)))
                assert [[row.id for row in rows] for rows in found] == [["t_1"]] * 8
                postgres.cut_off()
        with postgres.unavailable(), pytest.raises(OperationalError):
            database.rows(_TASKS, {})
        assert len(database.rows(_TASKS, {})) == 1
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


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


def test_sqlite_is_durable_and_strict(tmp_path_factory: pytest.TempPathFactory) -> None:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('db') / 'test.db'}")
    with database.engine.connect() as connection:
        for pragma, value in (("journal_mode", "wal"), ("foreign_keys", 1), ("synchronous", 2)):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == value
    database.close()


def test_a_writer_does_not_wait_for_its_turn_without_end() -> None:
    """The writer before it waits for a lock of another program: its time limit must not add up with those of others."""
    sqlite = SQLite(turn_seconds=0.01)
    with sqlite.one_writer(), pytest.raises(OperationalError, match="locked"), sqlite.one_writer():
        pass
    with sqlite.one_writer():
        pass


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


def test_a_connection_that_is_in_use_when_the_database_closes_is_closed_when_it_is_returned(database: Database) -> None:
    with database.read() as session:
        connection = session.connection().connection.driver_connection
        database.close()
        session.execute(select(TaskRow.id)).all()
    with pytest.raises(Exception, match="closed"):
        connection.execute("SELECT 1")


_SCRIPTS = ScriptDirectory(str(Path(aggregator_service.migrations.__file__).parent))
REVISIONS = [step.revision for step in _SCRIPTS.walk_revisions()][::-1]


@pytest.fixture
def bare_database(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url, connections=2)) as made:
        yield made


def test_the_newest_revision_and_the_models_agree(bare_database: Database) -> None:
    migrate(bare_database)
    assert sorted(set(REVISIONS)) == REVISIONS  # in one line
    with bare_database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    migrate(bare_database)  # a second start changes nothing


@pytest.mark.parametrize(
    ("database_url", "revision"),
    [*(("sqlite", revision) for revision in REVISIONS[:-1]), ("postgresql", REVISIONS[0])],
    indirect=["database_url"],
)
def test_rows_of_every_revision_survive_the_upgrade(bare_database: Database, revision: str) -> None:
    bare_database.migrating(lambda connection: command.upgrade(alembic_config(connection), revision))
    with bare_database.engine.begin() as connection:
        written = _fill(connection)
    assert written
    migrate(bare_database)
    with bare_database.engine.connect() as connection:
        tables = _tables(connection)
        for name, row in written.items():
            if name not in tables:
                continue
            (found,) = connection.execute(select(tables[name])).mappings().all()
            kept = {column: value for column, value in row.items() if column in found}
            assert {column: found[column] for column in kept} == kept, name
        assert connection.execute(select(tables["tasks"].c.follows)).scalar_one() in ("t_0", "follows-1")


def test_a_migration_that_fails_changes_nothing(bare_database: Database) -> None:
    def broken(connection: Connection) -> None:
        command.upgrade(alembic_config(connection), "head")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        bare_database.migrating(broken)
    with bare_database.engine.connect() as connection:
        assert inspect(connection).get_table_names() == []


def _tables(connection: Connection) -> dict[str, Table]:
    metadata = MetaData()
    metadata.reflect(connection)
    return {table.name: table for table in metadata.sorted_tables if table.name != "alembic_version"}


def _fill(connection: Connection) -> dict[str, dict[str, Any]]:
    """Insert one row into every table, with valid foreign keys; return the rows by table."""
    rows: dict[str, dict[str, Any]] = {}
    for table in _tables(connection).values():
        row: dict[str, Any] = {}
        for column in table.columns:
            pointed = next(iter(column.foreign_keys), None)
            if pointed is not None:
                row[column.name] = rows[pointed.column.table.name][pointed.column.name]
            else:
                row[column.name] = _value(column.type, column.name)
        connection.execute(table.insert(), row)
        rows[table.name] = row
    return rows


def _value(kind: TypeEngine[Any], name: str) -> Any:
    if isinstance(kind, Boolean):
        return True
    if isinstance(kind, JSON):
        return {"a": [1, 2.5, "x"], "follows": "t_0"}
    if isinstance(kind, BigInteger):
        return 2**40 + 1
    if isinstance(kind, Integer):
        return 7
    if isinstance(kind, Float):
        return 1_700_000_000.125
    if isinstance(kind, LargeBinary) or "BLOB" in str(kind):
        return bytes(range(32))
    if isinstance(kind, DateTime):
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return f"{name}-1"[: getattr(kind, "length", None) or 200]
