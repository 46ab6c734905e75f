"""Resumable uploads: each chunk is a blob with a row of its own, so that any replica goes on where another one stopped.

The last chunk puts them together, in a local file and in constant memory; from there on it is an upload like any other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.crash_points import crash_point
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.blobs import BlobDamagedError, new_key
from aggregator_service.storage.chunks import drop_chunks, stored_chunks, upload_progress
from aggregator_service.storage.rounds import find_contribution, lock_round_shared
from aggregator_service.storage.schema import ChunkRow
from aggregator_service.uploads.contributions import Admission, commit_contribution
from aggregator_service.uploads.receive import file_digest
from protocols.errors import ContributionError
from protocols.messages import UploadReceipt

__all__ = ["MOST_CHUNKS", "Chunk", "OvertakenError", "complete_upload", "store_chunk"]

MOST_CHUNKS: Final = 1000
"""Of one upload: each is a blob and a row, and nobody may make any number of them."""


class OvertakenError(Exception):
    """The upload is not where this chunk goes on any more: another request or the end of the round came in between."""


@dataclass(frozen=True)
class Chunk:
    """Bytes `offset` to `offset + length` of a contribution, received and verified, in the file at `path`."""

    path: Path
    offset: int
    length: int
    digest: str


def store_chunk(services: Services, admission: Admission, chunk: Chunk) -> None:
    """Make a chunk durable that is not the last one. Its file is gone afterwards, whatever happens.

    `OvertakenError` when the upload does not stand at the chunk's offset any more.
    """
    key = new_key("chunks", admission.round.task_id, admission.round.number, admission.client.client_id)
    try:
        services.blobs.adopt(chunk.path, key)
    finally:
        chunk.path.unlink(missing_ok=True)
    crash_point("chunk.stored-before-row")
    try:
        services.database.transact(lambda session: _insert(session, admission, chunk, key))
    except BaseException:
        _delete_unacknowledged(services, admission, chunk.offset, key)
        raise


def _insert(session: Session, admission: Admission, chunk: Chunk, key: str) -> None:
    # The round is held until the commit: a chunk is either there when the round's end lets go of them, or refused.
    round_id, client_id = admission.round.id, admission.client.client_id
    round_ = lock_round_shared(session, round_id, client_id)
    if round_.state != "collecting" or find_contribution(session, round_id, client_id) is not None:
        raise OvertakenError
    if upload_progress(session, round_id, client_id)[0] != chunk.offset:
        raise OvertakenError
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


def _delete_unacknowledged(services: Services, admission: Admission, offset: int, key: str) -> None:
    """Delete a blob unless its row is there after all: a commit may take effect and its answer be lost."""
    try:
        with services.database.read() as session:
            row = session.get(ChunkRow, (admission.round.id, admission.client.client_id, offset))
    except SQLAlchemyError:
        return  # nobody can tell now; if no row names it, it is swept away
    if row is None or row.blob_key != key:
        services.blobs.delete(key)


async def complete_upload(
    services: Services, admission: Admission, last: Chunk, whole: str
) -> tuple[UploadReceipt, bool]:
    """Put the chunks before the last one and check it all: receipt, and whether it is new.

    The last chunk's file has room for them in front. It is gone afterwards. An upload that turns out wrong starts again
    from nothing; after any other failure it stands where it stood. `OvertakenError` as in `store_chunk`.
    """
    try:
        try:
            digest = await run_in_threadpool(_assemble, services, admission, last)
        except BlobDamagedError:
            # let go of with the round or by another request, which the rows tell; otherwise lost, and sent again
            await run_in_threadpool(_forget, services, admission)
            raise OvertakenError from None
        if digest != whole:
            await run_in_threadpool(_forget, services, admission)
            raise Problem("bad-digest", "the SHA-256 of the whole contribution is not the one in Repr-Digest")
        return await commit_contribution(services, admission, last.path, whole)
    except ContributionError:
        await run_in_threadpool(_forget, services, admission)
        raise
    finally:
        last.path.unlink(missing_ok=True)


def _assemble(services: Services, admission: Admission, last: Chunk) -> str:
    """Write the chunks that are stored into the room before the last one; the digest of the whole."""
    with services.database.read() as session:
        chunks = stored_chunks(session, admission.round.id, admission.client.client_id)
    if sum(chunk.bytes for chunk in chunks) != last.offset:
        raise OvertakenError
    with last.path.open("r+b") as file:
        for chunk in chunks:
            for piece in services.blobs.chunks(chunk.blob_key, chunk.digest):
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return file_digest(last.path)


def _forget(services: Services, admission: Admission) -> None:
    """The upload stands at nothing; `OvertakenError` when it is over."""

    def write(session: Session) -> None:
        round_ = lock_round_shared(session, admission.round.id, admission.client.client_id)
        if round_.state != "collecting":
            raise OvertakenError
        drop_chunks(session, round_.id, admission.client.client_id)

    services.database.transact(write)
