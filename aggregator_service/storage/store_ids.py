"""Which blob store belongs to a database: both have the same id, and a server uses no other store.

A replica with another directory would fail every round, since it finds none of the blobs that the rows name.
"""

from __future__ import annotations

from typing import Final, cast

from sqlalchemy import Connection, Table, insert, select, update

from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import StorageRow

__all__ = ["MovedDatabaseError", "bind_store", "mark_moved", "record_store", "refuse_moved"]

_TABLE: Final = cast(Table, StorageRow.__table__)
_ONLY: Final = 1
"""Primary key of the only row."""
_LONGEST: Final = 400
"""Length of the column `moved_to`."""


class MovedDatabaseError(RuntimeError):
    """`hushrec-server migrate-storage` has copied this database: another one continues its tasks."""


def bind_store(database: Database, blobs: BlobStore) -> BlobStore:
    """Prepare the store of a database and return it: from then on it refuses to work without the database's id.

    A database that has no store yet takes this one. Raises `OtherStoreError` when the database belongs to another
    store, and `BlobsUnavailableError`.
    """
    found = _recorded(database)
    if found is None:
        database.migrating(lambda connection: _take(connection, blobs))  # servers that start together take turns
        found = _recorded(database)
    bound = blobs.bound(found or "")
    bound.prepare()
    return bound


def _take(connection: Connection, blobs: BlobStore) -> None:
    if connection.execute(select(_TABLE.c.id)).first() is None:
        connection.execute(insert(_TABLE).values(id=_ONLY, store_id=blobs.prepare()))


def _recorded(database: Database) -> str | None:
    with database.read() as session:
        return session.scalar(select(_TABLE.c.store_id))


def record_store(database: Database, store_id: str) -> None:
    """Let the database, which has a store already, belong to this one; it may be a copy of one that was moved."""
    with database.write() as session:
        session.execute(update(_TABLE).values(store_id=store_id, moved_to=None))


def mark_moved(database: Database, place: str) -> None:
    """Note that the database, which has a store, was moved to `place`; servers and commands then refuse it."""
    with database.write() as session:
        session.execute(update(_TABLE).values(moved_to=place[:_LONGEST]))


def refuse_moved(database: Database) -> None:
    """Raise `MovedDatabaseError` if the database was moved."""
    with database.read() as session:
        place = session.scalar(select(_TABLE.c.moved_to))
    if place is not None:
        raise MovedDatabaseError(
            f"hushrec-server migrate-storage has moved this database to {place}: set HUSHREC_DATABASE_URL to that one. "
            "To return to this one, while no server runs on either, set moved_to in its table storage to null"
        )
