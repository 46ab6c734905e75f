"""One server a data directory, no orphans left of a crash, nothing kept that no row names any more."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.logs import fields
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError, task_of_key
from aggregator_service.storage.database import DATABASE_GONE, Database, Effects
from aggregator_service.storage.schema import (
    ChunkRow,
    ClientRow,
    ContributionRow,
    RoundRow,
    SnapshotRow,
    TaskRow,
    ViewRow,
)

__all__ = [
    "DataDirectoryInUseError",
    "collect_bodies",
    "collect_orphans",
    "delete_orphans",
    "own_data_directory",
    "sweep",
]

_LOG = logging.getLogger(__name__)
_SWEEP_SECONDS: Final = 1800.0
_GRACE_SECONDS: Final = 6 * 3600.0
"""Far longer than any blob waits for its row, and than clocks of servers and stores differ."""


class DataDirectoryInUseError(RuntimeError):
    """Another server runs on this data directory."""


@contextmanager
def own_data_directory(path: Path) -> Iterator[None]:
    """Hold the directory's lock; the kernel lets go of it when the process dies, however it dies."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryInUseError(
                f"another server runs on {path}: each server needs a data directory of its own (--data-dir), "
                f"also where several share a database"
            ) from None
        yield
    finally:
        os.close(descriptor)


def collect_bodies(upload_dir: Path) -> int:
    """Delete what an earlier run had half received, before the first request is taken; how many bodies there were."""
    upload_dir.mkdir(parents=True, exist_ok=True)
    strays = list(upload_dir.iterdir())
    for path in strays:
        path.unlink(missing_ok=True)
    if strays:
        _LOG.info("bodies of an interrupted run removed", extra=fields(bodies=len(strays)))
    return len(strays)


def collect_orphans(database: Database, blobs: BlobStore, before: float | None = None) -> int:
    """Delete blobs of this database's tasks that no row names; how many there were.

    A blob is always written before the row that names it, so a running server has nameless blobs that are no orphans:
    without `before`, only the storage's one owner may do this, before it takes requests. With it, blobs written later
    than that are left alone. Blobs of unknown tasks are another database's.
    """
    with database.read() as session:
        named, tasks = _named_blobs(session), set(session.scalars(select(TaskRow.id)))
    blobs.clean(before)
    orphans = 0
    for batch in _batches(key for key in blobs.keys(before) if key not in named and task_of_key(key) in tasks):
        blobs.delete(*batch)
        orphans += len(batch)
    if orphans:
        _LOG.info("orphaned blobs removed", extra=fields(blobs=orphans))
    return orphans


def _batches(keys: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(keys, 1000)):
        yield batch


async def sweep(database: Database, blobs: BlobStore) -> None:
    """Collect orphans every now and then, until cancelled: what a failed deletion or a dead server left behind."""
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        try:
            # the machine's time, since that is what files and objects are dated by
            await run_in_threadpool(collect_orphans, database, blobs, time.time() - _GRACE_SECONDS)
        except (BlobsUnavailableError, *DATABASE_GONE) as error:
            _LOG.warning("orphans stay for now: the storage fails with %s", type(error).__name__)
        except Exception:
            _LOG.exception("orphans stay for now")


def delete_orphans(effects: Effects, blobs: BlobStore) -> None:
    """After a commit: delete what no row names any more. What cannot be deleted now is collected later."""
    if not effects.orphans:
        return
    try:
        blobs.delete(*effects.orphans)
    except BlobsUnavailableError as error:
        _LOG.warning("blobs are deleted later: %s", error, extra=fields(blobs=len(effects.orphans)))


def _named_blobs(session: Session) -> set[str]:
    columns = (
        ContributionRow.blob_key,
        ChunkRow.blob_key,
        RoundRow.partial_key,
        RoundRow.aggregate_key,
        SnapshotRow.blob_key,
        ViewRow.blob_key,
        ClientRow.envelope_key,
    )
    return {
        key
        for column in columns
        for key in session.scalars(select(column).where(column.is_not(None)))
        if key is not None
    }
