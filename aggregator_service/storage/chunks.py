"""Rows of the chunks of resumable uploads: which bytes of an unfinished contribution are stored, in which blobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.orm import Session

from aggregator_service.storage.database import discard
from aggregator_service.storage.schema import ChunkRow

__all__ = ["drop_chunks", "stored_chunks", "upload_progress"]

_ANY_CHUNK: Final = (
    select(ChunkRow.blob_key)
    .where(ChunkRow.round_id == bindparam("round"), ChunkRow.client_id == bindparam("client"))
    .limit(1)
)


def stored_chunks(session: Session, round_id: int, client_id: str) -> Sequence[ChunkRow]:
    """Return the chunks of one upload in order. Each starts where the previous one ends."""
    query = select(ChunkRow).where(ChunkRow.round_id == round_id, ChunkRow.client_id == client_id)
    return session.scalars(query.order_by(ChunkRow.offset)).all()


def upload_progress(session: Session, round_id: int, client_id: str) -> tuple[int, int]:
    """Return the bytes and the number of chunks that are stored of one upload."""
    query = select(func.coalesce(func.sum(ChunkRow.bytes), 0), func.count())
    found = session.execute(query.where(ChunkRow.round_id == round_id, ChunkRow.client_id == client_id)).one()
    return int(found[0]), int(found[1])


def drop_chunks(session: Session, round_id: int, client_id: str | None = None) -> int:
    """Delete the chunks of one upload, or of all uploads of a round; return the number of clients that had any.

    The blobs are deleted after the commit.
    """
    if client_id is not None and not session.execute(_ANY_CHUNK, {"round": round_id, "client": client_id}).all():
        return 0  # most contributions: saves the two statements below
    selected = [ChunkRow.round_id == round_id, *([] if client_id is None else [ChunkRow.client_id == client_id])]
    found = session.execute(select(ChunkRow.client_id, ChunkRow.blob_key).where(*selected)).all()
    for _, key in found:
        discard(session, key)
    if found:
        session.execute(delete(ChunkRow).where(*selected), execution_options={"synchronize_session": False})
    return len({client for client, _ in found})
