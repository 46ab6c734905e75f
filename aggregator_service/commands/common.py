"""Shared by the commands: options, database transactions, output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from aggregator_service.migrations.migrate import migrate
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.cleanup import delete_orphans
from aggregator_service.storage.database import Database
from aggregator_service.storage.private import make_private
from aggregator_service.storage.schema import TaskRow
from aggregator_service.storage.stores import open_store
from aggregator_service.tasks.tasks import list_tasks

__all__ = ["CommandError", "DataDir", "DatabaseUrl", "blob_store", "named_task", "show", "transaction"]

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Directory of the database and the blobs [HUSHREC_DATA_DIR; hushrec-data]"),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="SQLAlchemy URL of the database; default: SQLite in the data directory [HUSHREC_DATABASE_URL]",
    ),
]


class CommandError(Exception):
    """An error that the caller can correct; `main` prints it in one line."""


@contextmanager
def transaction(data_dir: Path | None, database_url: str | None) -> Iterator[Session]:
    """Yield a session in a write transaction on the server's database, which is migrated first.

    Commits on success, rolls back if the block raises. Raises: `CommandError` if the data directory has no database.
    """
    settings = server_settings(data_dir, database_url)
    database = Database(settings.database, connections=1)
    blobs = open_store(settings.blob_location, settings.scratch_dir)
    database.listeners.append(lambda effects: delete_orphans(effects, blobs))
    try:
        migrate(database)
        with database.write() as session:
            yield session
    finally:
        database.close()


def server_settings(data_dir: Path | None, database_url: str | None) -> Settings:
    """Return the settings of a server that has a database. Raises: `CommandError` if the data directory has none."""
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    if settings.database_url is None and not settings.data_dir.joinpath("hushrec.db").exists():
        raise CommandError(
            f"no database in {settings.data_dir}: set --data-dir to the server's data directory, or create a database "
            f"with hushrec-server init"
        )
    make_private(settings)
    return settings


def blob_store(data_dir: Path | None, database_url: str | None) -> BlobStore:
    """Return the server's blob store. Raises as `server_settings` does."""
    settings = server_settings(data_dir, database_url)
    return open_store(settings.blob_location, settings.scratch_dir)


def show(message: Any) -> None:
    """Print a message as indented JSON."""
    typer.echo(json.dumps(message, indent=2))


def named_task(session: Session, name: str) -> TaskRow:
    """Return the task with this name or id. Raises: `CommandError` if there is none."""
    found = list_tasks(session, name)
    row = found[0] if found else session.get(TaskRow, name)
    if row is None:
        raise CommandError(f"no task {name!r}; list the tasks with: hushrec-server task list")
    return row
