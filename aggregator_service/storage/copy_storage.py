"""Copy rows to another database, and blobs to another store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Table, func, insert, select, text
from sqlalchemy.orm import Session

from aggregator_service.storage.blobs import BlobDamagedError, BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import Base

__all__ = ["StorageNotEmptyError", "copy_blobs", "copy_rows", "refuse_rows"]

_BATCH: Final = 1000


class StorageNotEmptyError(RuntimeError):
    """The database to copy to has rows already."""


def refuse_rows(database: Database) -> None:
    """Raise `StorageNotEmptyError` if any table has a row."""
    with database.read() as session:
        _refuse_rows(session)


def copy_rows(source: Database, target: Database) -> dict[str, int]:
    """Copy all rows in one transaction; return their number for each table.

    Both databases have the newest schema. Raises `StorageNotEmptyError` if the target has rows.
    """
    with source.read() as reading, target.write() as writing:
        _refuse_rows(writing)
        return {table.name: _copy_table(table, reading, writing) for table in Base.metadata.sorted_tables}


def copy_blobs(named: Mapping[str, str], source: BlobStore, target: BlobStore) -> list[str]:
    """Copy blobs, each checked against its digest; return the keys of those that are missing or damaged.

    named: digest by key (`storage.named_blobs`).
    """
    damaged = []
    for key, digest in named.items():
        try:
            body = source.view(key, digest)
        except BlobDamagedError:
            damaged.append(key)
        else:
            target.put(key, body)
    return damaged


def _refuse_rows(session: Session) -> None:
    for table in Base.metadata.sorted_tables:
        if session.execute(select(table).limit(1)).first() is not None:
            raise StorageNotEmptyError(f"the database to copy to is not empty: its table {table.name} has rows")


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
