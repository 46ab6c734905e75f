"""The blobs that the rows of a database name. All others are orphans. Short bodies are rows themselves, not blobs."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import (
    ChunkRow,
    ClientRow,
    ContributionRow,
    RoundRow,
    SnapshotRow,
    ViewRow,
)
from aggregator_service.storage.small_bodies import is_small

__all__ = ["named_blobs"]

_NAMES: Final = (
    (ContributionRow.blob_key, ContributionRow.digest),
    (ChunkRow.blob_key, ChunkRow.digest),
    (RoundRow.partial_key, RoundRow.partial_digest),
    (RoundRow.aggregate_key, RoundRow.aggregate_digest),
    (SnapshotRow.blob_key, SnapshotRow.digest),
    (ViewRow.blob_key, ViewRow.digest),
    (ClientRow.envelope_key, ClientRow.envelope_digest),
)


def named_blobs(session: Session) -> dict[str, str]:
    """Return the key of each blob that a row names, with its SHA-256 (hex)."""
    found: dict[str, str] = {}
    for key, digest in _NAMES:
        for name, value in session.execute(select(key, digest).where(key.is_not(None))):
            if not is_small(str(name)):
                found[str(name)] = str(value)
    return found
