"""Snapshots: the newest model states of a task, and the view of them that each device group downloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.database import discard
from aggregator_service.storage.schema import SnapshotRow, ViewRow

__all__ = ["KEPT_SNAPSHOTS", "SERVER_AUTHOR", "add_snapshot", "find_snapshot", "seen_by"]

KEPT_SNAPSHOTS: Final = 2
"""Snapshots of a task whose bytes are kept."""
SERVER_AUTHOR: Final = "server"
"""Author of the snapshots that the server computes."""


def find_snapshot(session: Session, task_id: str, number: int) -> SnapshotRow | None:
    """Return the snapshot of a round, None without one. Its `blob_key` is None when its bytes are no longer kept."""
    return session.get(SnapshotRow, (task_id, number))


def seen_by(session: Session, snapshot: SnapshotRow, device_group: int | None) -> SnapshotRow | ViewRow:
    """Return what the members of `device_group` download of a snapshot: their view of it.

    Returns the snapshot itself when it has no views, or when `device_group` is None.
    """
    view = (
        None if device_group is None else session.get(ViewRow, (snapshot.task_id, snapshot.round_number, device_group))
    )
    return snapshot if view is None else view


def add_snapshot(
    session: Session, snapshot: SnapshotRow, views: Sequence[ViewRow] = (), best: int | None = None
) -> None:
    """Add a snapshot with the views of the device groups; after the commit, delete the bytes of older ones.

    The newest `KEPT_SNAPSHOTS` are kept, that of round `best`, and that of round 0, from which clients replay.
    """
    session.add(snapshot)
    session.flush()
    session.add_all(views)
    session.flush()
    kept = select(SnapshotRow).where(SnapshotRow.task_id == snapshot.task_id, SnapshotRow.blob_key.is_not(None))
    for old in session.scalars(kept.order_by(SnapshotRow.round_number.desc()).offset(KEPT_SNAPSHOTS)).all():
        if old.round_number in (0, best):
            continue
        its_views = ViewRow.task_id == old.task_id, ViewRow.round_number == old.round_number
        for row in (old, *session.scalars(select(ViewRow).where(*its_views))):
            discard(session, row.blob_key)
            row.blob_key = None
