"""Migrate a database to the newest schema. Alembic is imported only where there is something to migrate."""

from __future__ import annotations

from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from aggregator_service.storage.database import Database

__all__ = ["NEWEST", "migrate"]

NEWEST: Final = "0009"
"""Revision of the newest migration."""


def migrate(database: Database) -> None:
    """Run the missing migrations in one transaction. Processes that start at the same time take turns.

    Raises `NewerDatabaseError` if this version does not know the database's schema.
    """
    if _is_newest(database):
        return
    from aggregator_service.migrations.upgrade import upgrade  # Alembic is most of a command's start

    database.migrating(upgrade)


def _is_newest(database: Database) -> bool:
    try:
        with database.read() as session:
            return list(session.scalars(text("SELECT version_num FROM alembic_version"))) == [NEWEST]
    except DBAPIError:  # a database without tables
        return False
