"""`hushrec-server backup`, `restore` and `migrate-storage`: copy what a server stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from typer import Argument, Option

from aggregator_service.access.audit_trail import record
from aggregator_service.commands.options import (
    CommandError,
    DatabaseUrl,
    DataDir,
    command_actor,
    open_database,
    server_settings,
)
from aggregator_service.crash_points import crash_point
from aggregator_service.settings import Settings
from aggregator_service.storage.backup import (
    BLOBS_NAME,
    DATABASE_NAME,
    back_up,
    back_up_snapshot,
    copy_blobs,
    copy_rows,
    refuse_rows,
)
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.data_directory import create_data_directory, make_private
from aggregator_service.storage.database import Database, database_place, dialect_of
from aggregator_service.storage.dialects import database_cause
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.stores import (
    bind_store,
    is_unfinished_copy,
    mark_moved,
    named_blobs,
    open_store,
    record_store,
    refuse_moved,
)

_RESTORING: Final = "restore-"


def backup(
    target: Annotated[Path, Argument(help="New directory for the backup.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Copy the database and the blobs into a new directory. Servers may run meanwhile.

    The backup of any storage, also of PostgreSQL and S3, is an SQLite database and
    a directory of blobs, and can serve as a data directory. hushrec-server restore
    copies it into an empty database and its blob store.

    Example: hushrec-server backup /backup/2026-01-31 --data-dir /var/lib/hushrec
    """
    settings = server_settings(data_dir, database_url)
    store = open_store(settings.blob_location, settings.scratch_dir)
    is_sqlite = dialect_of(settings.database)[1].get_backend_name() == "sqlite"
    with open_database(settings.database, connections=2) as database:
        if is_sqlite and isinstance(store, DirectoryBlobs):
            made = back_up(database, store, target.resolve())
        else:
            refuse_moved(database)
            made = back_up_snapshot(database, bind_store(database, store), target.resolve(), open_database)
        _note(database, "backup made", made.path.name)
    typer.echo(f"{made.path}: the database and {made.blobs} blobs")
    _report_damage(made.damaged)


def restore(
    source: Annotated[Path, Argument(help="Directory of a backup, from hushrec-server backup.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Copy a backup into the server's database, which must be empty, and its blob store. No server may run.

    Each blob is checked against its digest. The backup stays as it is: one of an
    older version is migrated in the copy. After an interruption run it again.

    Example: hushrec-server restore /backup/2026-01-31 --data-dir /var/lib/hushrec
    """
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    if not source.joinpath(DATABASE_NAME).is_file():
        raise CommandError(f"{source} is no backup: it has no file {DATABASE_NAME}")
    create_data_directory(settings.data_dir)
    make_private(settings)
    with (
        TemporaryDirectory(dir=settings.data_dir, prefix=_RESTORING) as folder,
        open_database(settings.database, connections=2) as target,
        _led(target),
    ):
        for left in settings.data_dir.glob(f"{_RESTORING}*"):
            if left != Path(folder):
                shutil.rmtree(left)  # of a run that was killed
        for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal"):
            if source.joinpath(name).exists():
                shutil.copy(source / name, folder)
        with open_database(f"sqlite:///{Path(folder) / DATABASE_NAME}", connections=2) as copy:
            mark_moved(copy, database_place(settings.database))  # so that an unfinished copy is known as this one's
            store = DirectoryBlobs(source.resolve() / BLOBS_NAME)
            damaged = _copy(settings, copy, store, settings.database, settings.blob_location)
        _note(target, "backup restored", source.name)
    typer.echo(f"restored {source}. Start the server; docs/deploy.md says what it no longer knows")
    _report_damage(damaged)


def migrate_storage(
    to_database_url: Annotated[
        str | None, Option(help="SQLAlchemy URL of the new, empty database; default: the rows stay.")
    ] = None,
    to_blobs: Annotated[
        str | None, Option(help="New blob store, dir:/path or s3://bucket/prefix; default: the blobs stay.")
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Copy rows to another database and blobs to another store, while no server runs.

    The old database and blobs are kept, but servers and commands refuse them
    from then on: two servers must not continue the same tasks.

    Example: hushrec-server migrate-storage --to-database-url postgresql://hushrec@db.example.org/hushrec
    """
    if to_database_url is None and to_blobs is None:
        raise CommandError("name where to copy: --to-database-url, --to-blobs or both")
    settings = server_settings(data_dir, database_url)
    if to_blobs == settings.blob_location:
        raise CommandError("--to-blobs is the store that is in use")
    place = None if to_database_url is None else database_place(to_database_url)
    with open_database(settings.database, connections=2) as source, _led(source):
        refuse_moved(source, but_to=place)
        store = bind_store(source, open_store(settings.blob_location, settings.scratch_dir))
        damaged = _copy(settings, source, store, to_database_url, to_blobs)
    typer.echo("Set these and start the server; it does not start on the old storage again:")
    if to_database_url is not None:
        typer.echo(f"  HUSHREC_DATABASE_URL={make_url(to_database_url).render_as_string(hide_password=True)}")
    if to_blobs is not None:
        typer.echo(f"  HUSHREC_BLOBS={to_blobs}")
    _report_damage(damaged)


def _copy(
    settings: Settings, source: Database, store: BlobStore, to_database: str | None, to_blobs: str | None
) -> list[str]:
    """Copy blobs and rows, so that an interrupted run can be repeated; return keys of damaged blobs.

    The old database refuses to be used from the beginning, and the new one until the end. When the database stays in
    use, the old store refuses it at the end.
    """
    new_store = None if to_blobs is None else open_store(to_blobs, settings.scratch_dir)
    store_id = (new_store or store).prepare()
    if to_database is None:
        damaged = _copy_blobs(source, store, new_store)
        record_store(source, store_id)
        _note(source, "blobs moved")
        return damaged
    place = database_place(to_database)
    with open_database(to_database, connections=2) as target:
        with source.read() as original, target.read() as session:
            if not is_unfinished_copy(session, original, place):
                refuse_rows(session)
        mark_moved(source, place)
        crash_point("move.marked")
        try:
            damaged = _copy_blobs(source, store, new_store)
            copied = copy_rows(source, target, place)
        except Exception:
            mark_moved(source, None)
            raise
        crash_point("move.copied-before-finished")
        record_store(target, store_id)
        if to_database != settings.database:  # else it is a restore
            _note(target, "database moved")
    typer.echo(f"copied {sum(copied.values())} rows of {len(copied)} tables")
    return damaged


def _copy_blobs(source: Database, store: BlobStore, new_store: BlobStore | None) -> list[str]:
    if new_store is None:
        return []
    with source.read() as session:
        named = named_blobs(session)
    damaged = copy_blobs(named, store, new_store)
    typer.echo(f"copied {len(named) - len(damaged)} blobs")
    return damaged


def _note(database: Database, action: str, target: str | None = None) -> None:
    """Record an action in the audit trail. What was copied is complete without it: a full disk ends no backup."""
    try:
        database.transact(lambda session: record(session, command_actor(), action, target=target))
    except DBAPIError as error:
        typer.echo(f"the audit trail has no entry of this: {database_cause(error)}", err=True)


@contextmanager
def _led(database: Database) -> Iterator[None]:
    """Hold the leader lock, so that no server drives rounds. Raises `CommandError` if a server has it."""
    candidacy = database.candidacy()
    try:
        if not candidacy.leads():
            raise CommandError("a server runs on this database: stop it first")
        yield
    finally:
        candidacy.resign()


def _report_damage(damaged: list[str]) -> None:
    if damaged:
        names = ", ".join(sorted(damaged)[:5])
        raise CommandError(
            f"complete, but {len(damaged)} blobs are missing or damaged in the old store, and rounds that need them "
            f"will fail: {names}"
        )
