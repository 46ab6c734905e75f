"""Migrate a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

import aggregator_service.migrations
from aggregator_service.storage.database import Database

__all__ = ["alembic_config", "migrate"]


def alembic_config(connection: Connection) -> Config:
    """Return the configuration of Alembic, bound to a connection. There is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(aggregator_service.migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def migrate(database: Database) -> None:
    """Run the missing migrations in one transaction. Processes that start at the same time take turns."""
    database.migrating(lambda connection: command.upgrade(alembic_config(connection), "head"))
