"""Transactions over one kept connection: committed, rolled back and isolated as others, and no use of a broken one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage import kept_connection
from aggregator_service.storage.database import Database
from aggregator_service.storage.group_commit import GroupCommit
from aggregator_service.storage.kept_connection import KeptConnection
from aggregator_service.storage.schema import SmallBodyRow
from aggregator_service.storage.small_bodies import add_small_body
from tests.support.postgres import TestDatabase


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, connections=3)
    migrate(made)
    yield made
    made.close()


@pytest.fixture
def kept(database: Database) -> Iterator[KeptConnection]:
    made = database.keep_connection()
    yield made
    made.close()


def taken(database: Database) -> list[str]:
    """Notes each connection that is taken from the pool from now on."""
    found: list[str] = []
    event.listen(database.engine, "checkout", lambda *_: found.append("taken"))
    return found


def bodies(database: Database) -> dict[str, bytes]:
    with database.read() as session:
        return {row.key: row.body for row in session.scalars(select(SmallBodyRow))}


def test_one_connection_serves_all_transactions_until_it_is_returned(database: Database, kept: KeptConnection) -> None:
    connections = taken(database)
    for index in range(3):
        with database.write_over(kept) as session:
            add_small_body(session, f"rows/{index}", b"body")
    assert connections == ["taken"]
    kept.close()
    kept.close()  # idempotent
    assert bodies(database).keys() == {"rows/0", "rows/1", "rows/2"}
    with database.write_over(kept) as session:
        add_small_body(session, "rows/3", b"body")
    assert len(connections) == 3  # with that of the reader


def test_an_exception_rolls_back_and_returns_the_connection(database: Database, kept: KeptConnection) -> None:
    connections = taken(database)
    with pytest.raises(LookupError), database.write_over(kept) as session:
        add_small_body(session, "rows/lost", b"body")
        session.add(SmallBodyRow(key="rows/mapped", body=b"body"))
        session.flush()
        raise LookupError
    with database.write_over(kept) as session:
        add_small_body(session, "rows/kept", b"body")
    assert connections == ["taken", "taken"]
    assert bodies(database).keys() == {"rows/kept"}


def test_mapped_objects_are_written_and_forgotten(database: Database, kept: KeptConnection) -> None:
    with database.write_over(kept) as session:
        session.add(SmallBodyRow(key="rows/a", body=b"first"))
    assert bodies(database) == {"rows/a": b"first"}
    with database.write_over(kept) as session:
        assert session.get_one(SmallBodyRow, "rows/a").body == b"first"
    with database.write() as other:
        other.execute(update(SmallBodyRow).values(body=b"second"))
    with database.write_over(kept) as session:
        row = session.get_one(SmallBodyRow, "rows/a")
        assert row.body == b"second"
        row.body = b"third"
    assert bodies(database) == {"rows/a": b"third"}


def test_prepared_statements_and_mapped_objects_share_the_transaction(database: Database, kept: KeptConnection) -> None:
    with pytest.raises(LookupError), database.write_over(kept) as session:
        session.add(SmallBodyRow(key="rows/a", body=b"mapped"))
        session.flush()
        add_small_body(session, "rows/b", b"prepared")
        assert set(session.scalars(select(SmallBodyRow.key))) == {"rows/a", "rows/b"}
        raise LookupError
    assert not bodies(database)


def test_an_idle_connection_is_returned_to_the_pool_which_checks_it(
    database: Database, kept: KeptConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connection, "_IDLE_SECONDS", -1.0)
    connections = taken(database)
    for index in range(2):
        with database.write_over(kept) as session:
            add_small_body(session, f"rows/{index}", b"body")
    assert connections == ["taken", "taken"]


def test_a_write_after_the_connection_broke_is_committed_over_another(database: Database) -> None:
    group, broken = GroupCommit(database), list[bool]()

    def write(session: Session) -> None:
        if not broken:
            broken.append(True)
            session.connection().connection.dbapi_connection.close()  # type: ignore[union-attr]
        add_small_body(session, f"rows/{len(broken)}", b"body")
        broken.append(False)

    async def two() -> None:
        for _ in range(2):
            await group.run(write)

    asyncio.run(two())
    group.close()
    assert len(bodies(database)) == 2


@pytest.mark.parametrize("idle", [1.0, -1.0])
def test_a_write_after_postgresql_ended_the_idle_connection_is_committed(
    postgres: TestDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, idle: float
) -> None:
    """idle: negative where the pool checks the connection, otherwise the group is executed over others."""
    monkeypatch.setattr(kept_connection, "_IDLE_SECONDS", idle)
    database = Database(str(postgres.schema()), connections=3)
    migrate(database)
    group = GroupCommit(database)

    async def two_groups() -> None:
        for name in "ab":
            writes = [partial(add_small_body, key=f"rows/{name}{index}", body=b"body") for index in range(3)]
            await asyncio.gather(*(group.run(write) for write in writes))
            postgres.cut_off()

    asyncio.run(two_groups())
    assert bodies(database).keys() == {"rows/a0", "rows/a1", "rows/a2", "rows/b0", "rows/b1", "rows/b2"}
    group.close()
    database.close()
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
