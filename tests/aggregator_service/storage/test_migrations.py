"""Every schema revision can be upgraded to the newest, and rows survive that; on each database.

A new revision needs no new test: the rows are generated from the tables of each revision.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from sqlalchemy.types import JSON, TypeEngine

import aggregator_service.migrations
from aggregator_service.migrations.migrate import alembic_config, migrate
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import Base

_SCRIPTS = ScriptDirectory(str(Path(aggregator_service.migrations.__file__).parent))
REVISIONS = [step.revision for step in _SCRIPTS.walk_revisions()][::-1]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, connections=2)
    yield made
    made.close()


def test_the_revisions_form_one_line() -> None:
    assert len(REVISIONS) == len(set(REVISIONS)) >= 1
    assert sorted(REVISIONS) == REVISIONS


def test_the_newest_revision_and_the_models_agree(database: Database) -> None:
    migrate(database)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    migrate(database)  # a second start changes nothing


@pytest.mark.parametrize("revision", REVISIONS)
def test_rows_of_every_revision_survive_the_upgrade(database: Database, revision: str) -> None:
    database.migrating(lambda connection: command.upgrade(alembic_config(connection), revision))
    with database.engine.begin() as connection:
        written = _fill(connection)
    assert written
    migrate(database)
    with database.engine.connect() as connection:
        tables = _tables(connection)
        for name, row in written.items():
            if name not in tables:
                continue
            (found,) = connection.execute(select(tables[name])).mappings().all()
            kept = {column: value for column, value in row.items() if column in found}
            assert {column: found[column] for column in kept} == kept, name


def test_a_migration_that_fails_changes_nothing(database: Database) -> None:
    def broken(connection: Connection) -> None:
        command.upgrade(alembic_config(connection), "head")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        database.migrating(broken)
    with database.engine.connect() as connection:
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
        return {"a": [1, 2.5, "x"]}
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
