"""Which blob store a server uses: the one that HUSHREC_BLOBS names, if it is the database's; and its orphans.

Database and store have the same id. A replica with another directory would fail every round, since it finds none of the
blobs that the rows name. Blobs that no row names are orphans, and are deleted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, cast

from sqlalchemy import Connection, Table, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.logs import fields
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError, Content, Part, task_of_key
from aggregator_service.storage.bodies import is_small
from aggregator_service.storage.database import DATABASE_GONE, Database, Effects, database_place, in_batches
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.schema import (
    ChunkRow,
    ClientRow,
    ContributionRow,
    HandoutRow,
    PastTaskRow,
    RoundRow,
    SnapshotRow,
    StageMessageRow,
    StorageRow,
    TaskRow,
    ViewRow,
)
from protocols.errors import HushRecError, ParameterError, missing_extra

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
        raise missing_extra("an S3 store needs", "s3") from None
    return S3Blobs(found.group(1), (found.group(2) or "").strip("/"), scratch)


_TABLE: Final = cast(Table, StorageRow.__table__)
_ONLY: Final = 1
"""Primary key of the only row."""
_LONGEST: Final = 400
"""Length of the column `moved_to`."""


class MovedDatabaseError(HushRecError, RuntimeError):
    """`hushrec-server migrate-storage` has copied this database, and another one continues its tasks; or it is a copy
    that is not finished."""


def bind_store(database: Database, blobs: BlobStore) -> BlobStore:
    """Prepare the store of a database and return it: from then on it refuses to work without the database's id.

    A database that has no store yet takes this one. Raises `OtherStoreError` when the database belongs to another
    store, and `BlobsUnavailableError`.
    """

    def recorded(connection: Connection) -> str:
        found = connection.scalar(select(_TABLE.c.store_id))
        if found is None:
            found = blobs.prepare()
            connection.execute(insert(_TABLE).values(id=_ONLY, store_id=found))
        return found

    bound = blobs.bound(database.migrating(recorded))  # servers that start together take turns
    bound.prepare()
    return bound


def stored_id(session: Session) -> str:
    """Return the id of the database's store, "" if it has none yet."""
    return session.scalar(select(_TABLE.c.store_id)) or ""


def record_store(database: Database, store_id: str) -> None:
    """Let the database, which has a store already, belong to this one; if it is a copy, the copy is then finished."""
    with database.write() as session:
        session.execute(update(_TABLE).values(store_id=store_id, moved_to=None))


def mark_moved(database: Database, place: str | None) -> None:
    """Note that the database, which has a store, is being moved to `place`; servers and commands then refuse it.

    A copy of its rows has the mark, too, until the copy is finished (`record_store`). None: it is not moved after all.
    """
    with database.write() as session:
        session.execute(update(_TABLE).values(moved_to=None if place is None else place[:_LONGEST]))


def is_unfinished_copy(session: Session, of: Session, place: str) -> bool:
    """Return whether a database, which is at `place`, is a copy of another one that was never finished."""
    mark = select(_TABLE.c.store_id, _TABLE.c.moved_to)
    found, original = session.execute(mark).one_or_none(), of.execute(mark).one_or_none()
    return found is not None and found == original and found.moved_to == place[:_LONGEST]


def refuse_moved(database: Database, but_to: str | None = None) -> None:
    """Raise `MovedDatabaseError` if the database was moved, or is a copy that is not finished.

    but_to: a place to which it may have been moved.
    """
    with database.read() as session:
        place = session.scalar(select(_TABLE.c.moved_to))
    if place is None or (but_to is not None and place == but_to[:_LONGEST]):
        return
    if place == database_place(str(database.engine.url))[:_LONGEST]:
        raise MovedDatabaseError(
            "hushrec-server migrate-storage was interrupted before the copy to this database was finished: run the "
            "same command again"
        )
    raise MovedDatabaseError(
        f"hushrec-server migrate-storage has moved this database to {place}: set HUSHREC_DATABASE_URL to that one, or, "
        "if the command was interrupted, run the same command again. To return to this database, while no server runs "
        "on either, set moved_to in its table storage to null"
    )


# --- orphans ----------------------------------------------------------------------------------------------------------

_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")
_SWEEP_SECONDS: Final = 1800.0
_GRACE_SECONDS: Final = 6 * 3600.0
"""Far longer than the time between a blob and its row, and than the difference between two machines' clocks."""
_NAMES: Final = (
    (ChunkRow.blob_key, ChunkRow.digest),
    (RoundRow.partial_key, RoundRow.partial_digest),
    (RoundRow.aggregate_key, RoundRow.aggregate_digest),
    (SnapshotRow.blob_key, SnapshotRow.digest),
    (ViewRow.blob_key, ViewRow.digest),
    (ClientRow.envelope_key, ClientRow.envelope_digest),
    (TaskRow.catalogue_key, TaskRow.catalogue_digest),
)
_PACKED: Final = (
    (ContributionRow.blob_key, ContributionRow.blob_start, ContributionRow.bytes, ContributionRow.digest),
    *((row.blob_key, row.blob_start, row.length, row.digest) for row in (StageMessageRow, HandoutRow)),
)


def insert_named(
    database: Database,
    blobs: BlobStore,
    keys: Sequence[str],
    insert: Callable[[Session], Result],
    is_named: Callable[[Session], bool],
) -> Result:
    """Return what `insert` returns, which inserts the rows that name the new blobs `keys`, in a transaction.

    Where it finds the same stored already, it discards the keys (`database.discard`). It is called again when another
    process inserted the row after its check. When it fails, the blobs are deleted unless `is_named` finds their row: a
    commit may take effect and its answer be lost. If that cannot be read, `collect_orphans` deletes them later. Raises
    what `insert` raises.
    """
    try:
        try:
            return database.transact(insert)
        except IntegrityError:
            return database.transact(insert)
    except BaseException:
        with suppress(SQLAlchemyError):
            with database.read() as session:
                named = is_named(session)
            if not named:
                delete_orphans(Effects(orphans=list(keys)), blobs)
        raise


def named_blobs(session: Session) -> dict[str, Content]:
    """Return the key of each blob that a row names, with what the rows say of its bytes."""
    found: dict[str, Content] = {}
    for key, digest in _NAMES:
        for name, value in session.execute(select(key, digest).where(key.is_not(None))):
            if not is_small(str(name)):
                found[str(name)] = str(value)
    packed = defaultdict[str, list[Part]](list)
    for key, start, length, digest in _PACKED:
        for name, at, size, value in session.execute(select(key, start, length, digest).where(key.is_not(None))):
            if at is not None:
                packed[str(name)].append(Part(at, size, str(value)))
            elif not is_small(str(name)):
                found[str(name)] = str(value)
    return found | {name: tuple(sorted(parts)) for name, parts in packed.items()}


def collect_orphans(database: Database, blobs: BlobStore, before: float | None = None) -> int:
    """Delete the blobs of this database's tasks that no row names; return their number.

    before: keep blobs that were written later (seconds since the epoch). A blob is written before the row that names
    it, so a running server has blobs without rows: without `before`, call this only when no other process uses the
    storage and before serving. Blobs of unknown tasks belong to another database and are kept.
    """
    with database.read() as session:
        named = named_blobs(session)
        tasks = {*session.scalars(select(TaskRow.id)), *session.scalars(select(PastTaskRow.id))}
    blobs.clean(before)
    orphans = 0
    for batch in in_batches(key for key in blobs.keys(before) if key not in named and task_of_key(key) in tasks):
        blobs.delete(*batch)
        orphans += len(batch)
    if orphans:
        _LOG.info("removed orphaned blobs", extra=fields(blobs=orphans))
    return orphans


async def sweep(database: Database, blobs: BlobStore) -> None:
    """Delete orphans of failed deletions and killed servers every half hour, until cancelled."""
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        try:
            # system time, not the service's clock: files and objects carry it
            await run_in_threadpool(collect_orphans, database, blobs, time.time() - _GRACE_SECONDS)
        except (BlobsUnavailableError, *DATABASE_GONE) as error:
            _LOG.warning("cannot delete orphaned blobs: %s; trying again later", type(error).__name__)
        except Exception:
            _LOG.exception("failed to delete orphaned blobs; trying again later")


def delete_orphans(effects: Effects, blobs: BlobStore) -> None:
    """Delete the blobs that a commit made orphans. When that fails, `sweep` deletes them later."""
    if not effects.orphans:
        return
    try:
        blobs.delete(*dict.fromkeys(effects.orphans))  # a pack may be of several tables' rows
    except BlobsUnavailableError as error:
        _LOG.warning(
            "cannot delete orphaned blobs: %s; they are deleted later", error, extra=fields(blobs=len(effects.orphans))
        )
