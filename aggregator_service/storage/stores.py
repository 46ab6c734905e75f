"""Which blob store a server uses: the one that HUSHREC_BLOBS names, if it is the database's.

Database and store have the same id. A replica with another directory would fail every round, since it finds none of the
blobs that the rows name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, cast

from sqlalchemy import Connection, Table, insert, select, update

from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.schema import StorageRow
from protocols.errors import ParameterError

_S3: Final = re.compile(r"^s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9._/-]*))?$")


def open_store(location: str, scratch: Path) -> BlobStore:
    """Return the store at `dir:/path` or `s3://bucket/prefix`.

    scratch: a local directory for blobs that are read from S3.

    Raises `ParameterError` for another location, and when the extra `s3` is needed and not installed.
    """
    kind, _, path = location.partition(":")
    if kind == "dir" and path:
        return DirectoryBlobs(Path(path).resolve())
    found = _S3.match(location)
    if found is None:
        raise ParameterError("HUSHREC_BLOBS must be dir:/path or s3://bucket/prefix")
    try:
        from aggregator_service.storage.s3 import S3Blobs
    except ModuleNotFoundError:
        raise ParameterError("an S3 store needs the extra `s3`: pip install 'hushrec[s3]'") from None
    return S3Blobs(found.group(1), (found.group(2) or "").strip("/"), scratch)


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
