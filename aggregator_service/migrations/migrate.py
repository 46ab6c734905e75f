"""Migrate a database to the newest schema. Alembic is imported only where there is something to migrate."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text
from sqlalchemy.exc import DBAPIError

from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import Base

__all__ = ["NEWEST", "migrate"]

NEWEST: Final = "0009"
"""Revision of the newest migration."""
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's table, as Alembic would create it."""


def migrate(database: Database) -> None:
    """Create the tables, or run the missing migrations, in one transaction. Processes that start together take turns.

    Raises `NewerDatabaseError` if this version does not know the database's schema.
    """
    if not _is_newest(database):
        database.migrating(_create_or_upgrade)


def _is_newest(database: Database) -> bool:
    try:
        with database.read() as session:
            return list(session.scalars(text("SELECT version_num FROM alembic_version"))) == [NEWEST]
    except DBAPIError:  # a database without tables
        return False


def _create_or_upgrade(connection: Connection) -> None:
    if not inspect(connection).get_table_names():
        _create(connection)
        return
    from aggregator_service.migrations.upgrade import upgrade  # Alembic takes half as long as a whole start

    upgrade(connection)


def _create(connection: Connection) -> None:
    """Create the newest tables in an empty database: the tables to which all migrations lead (a test compares them)."""
    Base.metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection)
    connection.execute(insert(_VERSION).values(version_num=NEWEST))
