"""Resumable uploads: each chunk is a blob with a row of its own, so that any replica can continue an upload.

The last chunk is joined with the others in a local file, in constant memory. The result is stored like any other
contribution.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, Piece, new_key
from aggregator_service.storage.database import Database
from aggregator_service.storage.round_rows import find_contribution, lock_round_shared
from aggregator_service.storage.schema import ChunkRow
from aggregator_service.storage.stage_rows import drop_chunks, stored_chunks, upload_progress
from aggregator_service.uploads.checks import Admission
from aggregator_service.uploads.new_contributions import UploadOutcome, store_contribution_file
from aggregator_service.uploads.receive import store_file
from protocols.errors import ContributionError

MOST_CHUNKS: Final = 1000
"""Chunks of one upload before the last one: each takes a blob and a row, so a client may not store any number."""
_PIECE: Final = 4 * 1024 * 1024
"""Bytes that are joined at a time."""


class UploadChangedError(Exception):
    """The upload does not end at this chunk's offset any more: another request or the end of the round changed it."""


@dataclass(frozen=True)
class Chunk:
    """Bytes `offset` to `offset + length` of a contribution, received and verified, in the file at `path`."""

    path: Path
    offset: int
    length: int
    digest: str


def store_chunk(database: Database, blobs: BlobStore, admission: Admission, chunk: Chunk) -> None:
    """Make a chunk durable that is not the last one.

    Raises `UploadChangedError` when the upload does not end at the chunk's offset any more.
    """
    key = new_key("chunks", admission.round.task_id, admission.round.number, admission.client.client_id)

    def is_named(session: Session) -> bool:
        stored = session.get(ChunkRow, (admission.round.id, admission.client.client_id, chunk.offset))
        return stored is not None and stored.blob_key == key

    store_file(database, blobs, chunk.path, key, lambda session: _insert(session, admission, chunk, key), is_named)


def _insert(session: Session, admission: Admission, chunk: Chunk, key: str) -> None:
    # The round is locked until the commit: a chunk is stored before the round's end drops all chunks, or refused.
    round_id, client_id = admission.round.id, admission.client.client_id
    round_ = lock_round_shared(session, round_id, client_id)
    is_open = round_.state == "collecting" and find_contribution(session, round_id, client_id) is None
    if not is_open or upload_progress(session, round_id, client_id)[0] != chunk.offset:
        raise UploadChangedError
    session.add(
        ChunkRow(
            round_id=round_id,
            client_id=client_id,
            offset=chunk.offset,
            bytes=chunk.length,
            digest=chunk.digest,
            blob_key=key,
        )
    )


async def complete_upload(services: Services, admission: Admission, last: Chunk, whole: str) -> UploadOutcome:
    """Join the stored chunks with the last one, check the contribution and store it.

    last: the last chunk; its file has `last.offset` free bytes at the beginning. whole: the announced SHA-256 (hex) of
    the contribution.

    A wrong digest or a `ContributionError` drops the chunks: the client starts again from offset 0. After any other
    failure the chunks stay. Raises `UploadChangedError` as `store_chunk` does.
    """
    try:
        try:
            digest = await run_in_threadpool(_join, services.database, services.blobs, admission, last)
            if digest != whole:
                await run_in_threadpool(_check_stored, services.database, services.blobs, admission)
        except BlobDamagedError:
            # The round's end or another request deleted a blob, and its row; or the blob is lost and is sent again.
            await run_in_threadpool(_delete_chunks, services.database, admission)
            raise UploadChangedError from None
        if digest != whole:
            await run_in_threadpool(_delete_chunks, services.database, admission)
            raise Problem("bad-digest", "the SHA-256 of the whole contribution is not the one in Repr-Digest")
        return await store_contribution_file(services, admission, last.path, whole)
    except ContributionError:
        await run_in_threadpool(_delete_chunks, services.database, admission)
        raise


def _join(database: Database, blobs: BlobStore, admission: Admission, last: Chunk) -> str:
    """Write the stored chunks before the last one in its file; return the SHA-256 (hex) of the whole.

    The chunks are hashed once, as a part of the whole; `_check_stored` tells which one is damaged if that is wrong.
    """
    with database.read() as session:
        chunks = stored_chunks(session, admission.round.id, admission.client.client_id)
    if sum(chunk.bytes for chunk in chunks) != last.offset:
        raise UploadChangedError
    state = hashlib.sha256()
    with last.path.open("r+b") as file:
        for chunk in chunks:
            for start in range(0, chunk.bytes, _PIECE):
                [piece] = blobs.pieces([Piece(chunk.blob_key, start, min(_PIECE, chunk.bytes - start))])
                state.update(piece)
                file.write(piece)
        while piece := file.read(_PIECE):
            state.update(piece)
    return state.hexdigest()


def _check_stored(database: Database, blobs: BlobStore, admission: Admission) -> None:
    """Raise `BlobDamagedError` if a stored chunk of the upload is damaged: then the whole is not the sender's fault."""
    with database.read() as session:
        chunks = stored_chunks(session, admission.round.id, admission.client.client_id)
    for chunk in chunks:
        blobs.chunks(chunk.blob_key, chunk.digest)


def _delete_chunks(database: Database, admission: Admission) -> None:
    """Delete all chunks of the upload. Raises `UploadChangedError` when the round does not collect any more."""

    def write(session: Session) -> None:
        round_ = lock_round_shared(session, admission.round.id, admission.client.client_id)
        if round_.state != "collecting":
            raise UploadChangedError
        drop_chunks(session, round_.id, admission.client.client_id)

    database.transact(write)
