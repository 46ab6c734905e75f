"""Snapshots: the newest few model states of a task, and what each group of clients downloads of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.database import discard
from aggregator_service.storage.schema import SnapshotRow, ViewRow

__all__ = ["KEPT_SNAPSHOTS", "SERVER_AUTHOR", "add_snapshot", "find_snapshot", "seen_by"]

KEPT_SNAPSHOTS: Final = 2
SERVER_AUTHOR: Final = "server"


def find_snapshot(session: Session, task_id: str, number: int) -> SnapshotRow | None:
    """The snapshot of a round; its `blob_key` is null when it is no longer kept."""
    return session.get(SnapshotRow, (task_id, number))


def seen_by(session: Session, snapshot: SnapshotRow, device_group: int | None) -> SnapshotRow | ViewRow:
    """What the members of `device_group` download of a snapshot.

    The snapshot itself where the groups have no views of it, or where `device_group` is None.
    """
    view = (
        None if device_group is None else session.get(ViewRow, (snapshot.task_id, snapshot.round_number, device_group))
    )
    return snapshot if view is None else view


def add_snapshot(session: Session, snapshot: SnapshotRow, views: Sequence[ViewRow] = ()) -> None:
    """Store a snapshot with the groups' views of it, and let go of the bytes of those that are now too old."""
    session.add(snapshot)
    session.flush()
    session.add_all(views)
    session.flush()
    kept = select(SnapshotRow).where(SnapshotRow.task_id == snapshot.task_id, SnapshotRow.blob_key.is_not(None))
    for old in session.scalars(kept.order_by(SnapshotRow.round_number.desc()).offset(KEPT_SNAPSHOTS)).all():
        of_it = ViewRow.task_id == old.task_id, ViewRow.round_number == old.round_number
        for row in (old, *session.scalars(select(ViewRow).where(*of_it))):
            discard(session, row.blob_key)
            row.blob_key = None
