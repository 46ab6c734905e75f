"""What happens before a server takes requests: one server a data directory, no orphans left of a crash."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, SnapshotRow, UploadRow, ViewRow

__all__ = ["DataDirectoryInUseError", "collect_orphans", "own_data_directory"]

_LOG = logging.getLogger(__name__)


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
            raise DataDirectoryInUseError(f"another server runs on {path}") from None
        yield
    finally:
        os.close(descriptor)


def collect_orphans(database: Database, blobs: BlobStore, upload_dir: Path) -> int:
    """Delete blobs and half-received bodies that no row names; how many there were.

    Only the owner of the data directory may do this, before it takes requests: a blob is always written before the
    row that names it, so a running server has nameless blobs that are no orphans.
    """
    with database.read() as session:
        named, parts = _named_blobs(session), set(session.scalars(select(UploadRow.file_name)))
    blobs.clean()
    orphans = [key for key in blobs.keys() if key not in named]  # noqa: SIM118 - a store, not a dict
    for key in orphans:
        blobs.delete(key)
    upload_dir.mkdir(parents=True, exist_ok=True)
    strays = [path for path in upload_dir.iterdir() if path.name not in parts]
    for path in strays:
        path.unlink(missing_ok=True)
    if orphans or strays:
        _LOG.info("orphans of an interrupted run removed", extra=fields(blobs=len(orphans), bodies=len(strays)))
    return len(orphans) + len(strays)


def _named_blobs(session: Session) -> set[str]:
    columns = (
        ContributionRow.blob_key,
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
