"""Chunks of resumable uploads in the database: which bytes of an unfinished contribution are stored, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.orm import Session

from aggregator_service.storage.database import discard
from aggregator_service.storage.schema import ChunkRow

__all__ = ["drop_chunks", "stored_chunks", "upload_progress"]

_ANY: Final = (
    select(ChunkRow.blob_key)
    .where(ChunkRow.round_id == bindparam("round"), ChunkRow.client_id == bindparam("client"))
    .limit(1)
)


def stored_chunks(session: Session, round_id: int, client_id: str) -> Sequence[ChunkRow]:
    """The chunks of one upload, in order. Each begins where the one before it ends."""
    query = select(ChunkRow).where(ChunkRow.round_id == round_id, ChunkRow.client_id == client_id)
    return session.scalars(query.order_by(ChunkRow.offset)).all()


def upload_progress(session: Session, round_id: int, client_id: str) -> tuple[int, int]:
    """Where one upload stands: bytes that are stored, and in how many chunks."""
    query = select(func.coalesce(func.sum(ChunkRow.bytes), 0), func.count())
    found = session.execute(query.where(ChunkRow.round_id == round_id, ChunkRow.client_id == client_id)).one()
    return int(found[0]), int(found[1])


def drop_chunks(session: Session, round_id: int, client_id: str | None = None) -> int:
    """Forget the chunks of one upload, or of all of a round, and delete them after the commit; of how many clients."""
    if client_id is not None and not session.execute(_ANY, {"round": round_id, "client": client_id}).all():
        return 0  # as for nearly every contribution
    mine = [ChunkRow.round_id == round_id, *([] if client_id is None else [ChunkRow.client_id == client_id])]
    found = session.execute(select(ChunkRow.client_id, ChunkRow.blob_key).where(*mine)).all()
    for _, key in found:
        discard(session, key)
    if found:
        session.execute(delete(ChunkRow).where(*mine), execution_options={"synchronize_session": False})
    return len({client for client, _ in found})
