"""Migrate a database to the newest schema with Alembic."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import aggregator_service.migrations
from aggregator_service.storage.database import Database
from protocols.errors import HushRecError

_LOG = logging.getLogger(__name__)


class NewerDatabaseError(HushRecError, RuntimeError):
    """A newer version of the server has migrated the database."""


def migrate(database: Database) -> None:
    """Run and log the missing migrations in one transaction. Processes that start together take turns.

    Raises `NewerDatabaseError` if this version does not know the database's revision.
    """
    database.migrating(_upgrade)


def alembic_config(connection: Connection) -> Config:
    """Return the configuration of Alembic, bound to a connection. There is no ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(aggregator_service.migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    config = alembic_config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    before = MigrationContext.configure(connection).get_current_heads()
    unknown = set(before) - known
    if unknown:
        raise NewerDatabaseError(
            f"a newer version of the server has migrated this database (to {', '.join(sorted(unknown))}): install that "
            "version, or restore a backup from before the upgrade"
        )
    command.upgrade(config, "head")
    after = MigrationContext.configure(connection).get_current_heads()
    if not before:
        _LOG.info("created the tables of the database, revision %s", *after)
    elif after != before:
        _LOG.warning("migrated the tables of the database from %s to %s: older versions refuse it", *before, *after)
