"""A backup of a database and its blobs, while servers use them: a directory that can serve as a data directory.

Database and blobs must fit together, although the server deletes blobs all the time.

- `back_up`, of an SQLite database and a directory: for a moment no other transaction can write. In it the backup starts
  to read the database and gives each blob that a row names a second name, which outlives its deletion. Both are copied
  afterwards, while the server writes again.
- `back_up_snapshot`, of any other storage: blobs are copied first, then those that a snapshot of the database names
  besides. When one of these was deleted meanwhile, another snapshot is taken, which does not name it. The rows of the
  last snapshot follow.

`copy_rows` and `copy_blobs` also move a server's data to another database or store.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Table, delete, func, insert, select, text
from sqlalchemy.orm import Session

from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, Content, read_content
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs, sync_directory
from aggregator_service.storage.schema import Base
from aggregator_service.storage.stores import is_unfinished_copy, named_blobs, stored_id
from protocols.errors import HushRecError

DATABASE_NAME: Final = "hushrec.db"
BLOBS_NAME: Final = "blobs"
_LOCK: Final = ".backup.lock"
_STAGING: Final = ".backup-"


class BackupError(HushRecError, RuntimeError):
    """A backup or a copy is not possible; the message says why."""


@dataclass(frozen=True)
class Backup:
    """A finished backup."""

    path: Path
    blobs: int
    damaged: list[str]
    """Keys of blobs that were already missing or damaged in the store."""


def back_up(database: Database, blobs: DirectoryBlobs, target: Path) -> Backup:
    """Copy an SQLite database and its blobs to the new directory `target`, which can serve as a data directory.

    The directory has its name only when the backup is complete; until then it
    ends with `.partial`. Raises `BackupError` if `target` exists or another backup of these blobs runs.
    """
    path = Path(database.engine.url.database or "")
    with _becoming(target) as partial:
        copied, damaged = _copy(database, path, blobs, partial)
    return Backup(target, copied, damaged)


@contextmanager
def _becoming(target: Path) -> Iterator[Path]:
    """Yield a new directory, which becomes `target` at the end of the block, and is removed when that raises."""
    if target.exists():
        raise BackupError(f"{target} exists already: name a new directory")
    partial = target.with_name(f"{target.name}.partial-{secrets.token_hex(4)}")
    partial.mkdir(parents=True, mode=0o700)
    try:
        yield partial
        sync_directory(partial)
        partial.rename(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


_MOST_PASSES: Final = 50
_SHORT_PASS: Final = 1.0
"""Seconds. PostgreSQL ends a session that does nothing in a transaction for 8 s (`storage.postgres`)."""


def back_up_snapshot(
    database: Database, blobs: BlobStore, target: Path, new_database: Callable[[str], AbstractContextManager[Database]]
) -> Backup:
    """Copy a database and its blobs to the new directory `target`, as an SQLite database and a directory of blobs.

    new_database: opens an SQLite database with the newest schema, at this URL. Raises `BackupError` if `target` exists,
    and `BlobsUnavailableError`.
    """
    with _becoming(target) as partial:
        with database.read() as session:
            copies = _Copies(blobs, partial, stored_id(session))
        for _ in range(_MOST_PASSES):
            begun = time.monotonic()
            with database.read() as session:
                named = named_blobs(session)
            copies.add(named)
            if time.monotonic() - begun < _SHORT_PASS:
                break
        with new_database(f"sqlite:///{partial / DATABASE_NAME}") as copy:
            for _ in range(_MOST_PASSES):
                with database.read() as session:
                    named = named_blobs(session)  # from this first statement on the session sees one state
                    if copies.add(named):
                        with copy.write() as writing:
                            _copy_tables(session, writing)
                        break
            else:
                raise BackupError("blobs are deleted faster than they can be copied: try again when less is going on")
        damaged = copies.keep(named)
        with (partial / DATABASE_NAME).open("rb+") as file:
            os.fsync(file.fileno())
    return Backup(target, len(named) - len(damaged), damaged)


class _Copies:
    """The blobs of a backup by snapshot, in `folder`. store_id: of the database's store, "" for none."""

    def __init__(self, source: BlobStore, folder: Path, store_id: str) -> None:
        self._source, self._target = source, DirectoryBlobs(folder / BLOBS_NAME)
        self._target.prepare(store_id)
        self._held, self._lost = dict[str, Content](), set[str]()

    def add(self, named: Mapping[str, Content]) -> bool:
        """Copy what is new among these blobs; return whether all are there that are not damaged.

        A blob that is not there was deleted since `named` was read, if it was not missing before.
        """
        new = {key: content for key, content in named.items() if self._held.get(key) != content}  # packs grow
        missing = set(copy_blobs(new, self._source, self._target))
        self._held |= {key: content for key, content in new.items() if key not in missing}
        is_complete = missing <= self._lost
        self._lost |= missing
        return is_complete

    def keep(self, named: Mapping[str, Content]) -> list[str]:
        """Delete copies of others; return the keys of blobs that are damaged."""
        self._target.delete(*sorted(self._held.keys() - named.keys()))
        return sorted(key for key, content in named.items() if self._held.get(key) != content)


def _copy(database: Database, path: Path, blobs: DirectoryBlobs, partial: Path) -> tuple[int, list[str]]:
    """Copy to `partial`; return the number of blobs that were copied, and the keys of those that could not be."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)) as reading:
        if _has_none(database, blobs):
            _begin_reading(reading)
            _copy_database(reading, partial / DATABASE_NAME)
            return 0, []
        with _staging(blobs) as staged:
            with database.write() as session:
                named = named_blobs(session)  # from this first statement to the end of the block nothing else writes
                _begin_reading(reading)
                missing = [key for key in named if not blobs.link(key, staged)]
            _copy_database(reading, partial / DATABASE_NAME)
            copies = DirectoryBlobs(partial / BLOBS_NAME)
            copies.prepare(blobs.current_id())  # that of the copied row
            present = {key: content for key, content in named.items() if key not in set(missing)}
            damaged = copy_blobs(present, staged, copies)
    return len(present) - len(damaged), missing + damaged


def _has_none(database: Database, blobs: DirectoryBlobs) -> bool:
    """Return whether no server has stored blobs yet; `BackupError` if the directory of those that rows name is gone."""
    if blobs.root.exists():
        return False
    with database.read() as session:
        if named_blobs(session):
            raise BackupError(f"the directory of the blobs, {blobs.root}, does not exist")
    return True


def _begin_reading(connection: sqlite3.Connection) -> None:
    """Begin a transaction that sees the present state, however long it lasts."""
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchall()


def _copy_database(reading: sqlite3.Connection, target: Path) -> None:
    with closing(sqlite3.connect(target)) as copy:
        reading.backup(copy)
        (result,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise BackupError(f"the database is damaged: {result}")
    with target.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def _staging(blobs: DirectoryBlobs) -> Iterator[DirectoryBlobs]:
    """Yield a directory on the file system of the blobs, for their second names. Removes what killed backups left."""
    with (blobs.root / _LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another backup of {blobs.root} runs") from None
        for left in blobs.root.glob(f"{_STAGING}*"):
            shutil.rmtree(left)
        folder = blobs.root / f"{_STAGING}{secrets.token_hex(4)}"
        staged = DirectoryBlobs(folder)
        staged.prepare()
        try:
            yield staged
        finally:
            shutil.rmtree(folder)


_BATCH: Final = 1000


def copy_rows(source: Database, target: Database, place: str) -> dict[str, int]:
    """Copy all rows in one transaction; return their number for each table.

    place: of the target. Both databases have the newest schema. An unfinished copy is replaced: the source may have
    changed since. Raises `BackupError` if the target has other rows.
    """
    with source.read() as reading, target.write() as writing:
        if is_unfinished_copy(writing, reading, place):
            for table in reversed(Base.metadata.sorted_tables):
                writing.execute(delete(table))
        refuse_rows(writing)
        return _copy_tables(reading, writing)


def _copy_tables(reading: Session, writing: Session) -> dict[str, int]:
    """Copy all rows to empty tables; return their number for each table."""
    return {table.name: _copy_table(table, reading, writing) for table in Base.metadata.sorted_tables}


def copy_blobs(named: Mapping[str, Content], source: BlobStore, target: BlobStore) -> list[str]:
    """Copy blobs, each checked against its digests; return the keys of those that are missing or damaged.

    named: content by key (`storage.stores`).
    """
    damaged = []
    for key, content in named.items():
        try:
            body = read_content(source, key, content)
        except BlobDamagedError:
            damaged.append(key)
        else:
            target.put(key, body)
    return damaged


def refuse_rows(session: Session) -> None:
    """Raise `BackupError` if any table has a row."""
    for table in Base.metadata.sorted_tables:
        if session.execute(select(table).limit(1)).first() is not None:
            raise BackupError(f"the database to copy to is not empty: its table {table.name} has rows")


def _copy_table(table: Table, reading: Session, writing: Session) -> int:
    copied = 0
    rows = reading.execute(select(table).execution_options(yield_per=_BATCH)).mappings()
    for batch in rows.partitions(_BATCH):
        writing.execute(insert(table), [dict(row) for row in batch])
        copied += len(batch)
    _advance_sequence(table, writing)
    return copied


def _advance_sequence(table: Table, session: Session) -> None:
    """Let PostgreSQL number new rows after the copied ones; SQLite does so by itself."""
    column = table.autoincrement_column
    if column is None or session.get_bind().dialect.name != "postgresql":
        return
    last = session.execute(select(func.max(column))).scalar_one()
    if last is not None:
        advance = text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)")
        session.execute(advance, {"table": table.name, "column": column.name, "last": last})
