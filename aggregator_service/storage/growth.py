"""How much a server stores, and how much more each day: measured once an hour, and kept for eight days."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from aggregator_service.storage.database import changed_rows
from aggregator_service.storage.schema import (
    ChunkRow,
    ClientRow,
    ContributionRow,
    HandoutRow,
    RoundRow,
    SizeRow,
    SnapshotRow,
    StageMessageRow,
    TaskRow,
    ViewRow,
)

_DAY: Final = 86_400.0
_KEPT: Final = 8 * _DAY
_SHORTEST: Final = 1800.0
"""Seconds between two measurements that say something about a day."""
_BLOBS: Final = {
    "aggregates": (RoundRow.aggregate_bytes, RoundRow.aggregate_key),
    "contributions": (ContributionRow.bytes, ContributionRow.blob_key),
    "chunks": (ChunkRow.bytes, ChunkRow.blob_key),
    "stages": (StageMessageRow.length, StageMessageRow.blob_key),
    "handouts": (HandoutRow.length, HandoutRow.blob_key),
    "snapshots": (SnapshotRow.bytes, SnapshotRow.blob_key),
    "views": (ViewRow.bytes, ViewRow.blob_key),
    "envelopes": (ClientRow.envelope_bytes, ClientRow.envelope_key),
    "catalogues": (TaskRow.catalogue_bytes, TaskRow.catalogue_key),
}


@dataclass(frozen=True)
class Growth:
    """What was stored when it was measured last, and bytes a day by which it grew."""

    measured_at: float
    database: int
    kinds: Mapping[str, int]
    """Bytes of blobs and bodies by kind."""
    database_a_day: float | None = None
    blobs_a_day: float | None = None
    """None while there is nothing to compare with."""

    @property
    def blobs(self) -> int:
        """Bytes of all blobs and bodies."""
        return sum(self.kinds.values())


def _database_bytes(session: Session) -> int:
    """Return the bytes of the database on its disk, with free pages that it uses again; without SQLite's log."""
    if session.get_bind().dialect.name == "postgresql":
        return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    return int(session.execute(text(pages)).scalar_one())


def measure(session: Session, now: float) -> None:
    """Store how much is stored now, and delete measurements that are older than eight days."""
    kinds = {}
    for kind, (size, key) in _BLOBS.items():
        total = select(func.coalesce(func.sum(size), 0)).where(key.is_not(None))
        kinds[kind] = int(session.execute(total).scalar_one() or 0)
    session.add(SizeRow(measured_at=now, database_bytes=_database_bytes(session), kinds=kinds))
    changed_rows(session, delete(SizeRow).where(SizeRow.measured_at < now - _KEPT))


def growth(session: Session) -> Growth | None:
    """Return the newest measurement, compared with the oldest one that is kept; None before the first."""
    by_time = select(SizeRow).order_by(SizeRow.measured_at)
    first = session.scalars(by_time.limit(1)).first()
    last = session.scalars(by_time.order_by(None).order_by(SizeRow.measured_at.desc()).limit(1)).first()
    if first is None or last is None:
        return None
    found = Growth(last.measured_at, last.database_bytes, last.kinds)
    days = (last.measured_at - first.measured_at) / _DAY
    if days * _DAY < _SHORTEST:
        return found
    blobs = (found.blobs - sum(first.kinds.values())) / days
    return replace(found, database_a_day=(found.database - first.database_bytes) / days, blobs_a_day=blobs)
