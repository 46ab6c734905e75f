"""Snapshots: the newest few model states of a task."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.database import discard
from aggregator_service.storage.schema import SnapshotRow

__all__ = ["KEPT_SNAPSHOTS", "SERVER_AUTHOR", "add_snapshot", "find_snapshot"]

KEPT_SNAPSHOTS: Final = 2
SERVER_AUTHOR: Final = "server"


def find_snapshot(session: Session, task_id: str, number: int) -> SnapshotRow | None:
    """The snapshot of a round; its `blob_key` is null when it is no longer kept."""
    return session.get(SnapshotRow, (task_id, number))


def add_snapshot(session: Session, snapshot: SnapshotRow) -> None:
    """Store a snapshot and let go of the bytes of those that are now too old."""
    session.add(snapshot)
    session.flush()
    kept = select(SnapshotRow).where(SnapshotRow.task_id == snapshot.task_id, SnapshotRow.blob_key.is_not(None))
    for old in session.scalars(kept.order_by(SnapshotRow.round_number.desc()).offset(KEPT_SNAPSHOTS)).all():
        discard(session, old.blob_key)
        old.blob_key = None
