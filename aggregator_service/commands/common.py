"""What the commands share: which database, transactions on it, and how they end."""

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
from aggregator_service.storage.cleanup import delete_orphans
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import TaskRow
from aggregator_service.storage.stores import open_store
from aggregator_service.tasks.tasks import list_tasks

__all__ = ["CommandError", "DataDir", "DatabaseUrl", "named_task", "show", "transaction"]

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory of database and blobs [HUSHREC_DATA_DIR; hushrec-data]")
]
DatabaseUrl = Annotated[
    str | None, typer.Option("--database-url", help="SQLAlchemy URL instead of SQLite [HUSHREC_DATABASE_URL]")
]


class CommandError(Exception):
    """What goes wrong is told in one line."""


@contextmanager
def transaction(data_dir: Path | None, database_url: str | None) -> Iterator[Session]:
    """A transaction on the server's database, which is brought up to date first; `CommandError` when there is none."""
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    if settings.database_url is None and not settings.data_dir.joinpath("hushrec.db").exists():
        raise CommandError(
            f"no server's database is in {settings.data_dir}: --data-dir names the server's data directory, "
            f"and hushrec-server init makes one"
        )
    database = Database(settings.database, connections=1)
    blobs = open_store(settings.blob_location, settings.scratch_dir)
    database.listeners.append(lambda effects: delete_orphans(effects, blobs))
    try:
        migrate(database)
        with database.write() as session:
            yield session
    finally:
        database.close()


def show(message: Any) -> None:
    """A message as JSON."""
    typer.echo(json.dumps(message, indent=2))


def named_task(session: Session, name: str) -> TaskRow:
    """The task with that name, or with that id; `CommandError` when there is none."""
    found = list_tasks(session, name)
    row = found[0] if found else session.get(TaskRow, name)
    if row is None:
        raise CommandError(f"there is no task {name!r}; see: hushrec-server task list")
    return row
