"""Store contributions: receive and check the bytes, make them durable, insert the row, and only then acknowledge."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from aggregator_service.crash_points import crash_point
from aggregator_service.services import Services
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.body_tags import tag_of
from aggregator_service.storage.cleanup import body_path
from aggregator_service.storage.file_maps import map_file
from aggregator_service.storage.rounds import find_contribution
from aggregator_service.storage.small_bodies import new_small_key
from aggregator_service.uploads.admission import Admission
from aggregator_service.uploads.insert_contribution import SmallContribution, insert_contribution
from aggregator_service.uploads.outcomes import AlreadyStored, Stored, UploadOutcome
from aggregator_service.uploads.receive import ReceivedBody, receive_small_body, stream_body
from aggregator_service.uploads.tickets import check_ticket

__all__ = ["receive_contribution", "store_contribution_file"]


async def receive_contribution(
    services: Services, admission: Admission, request: Request, digest: str
) -> UploadOutcome:
    """Receive a whole contribution with the announced SHA-256 `digest` (hex), check it and store it.

    Raises `ContributionError` (the sender's fault) when the bytes must not enter the sum, and `Problem` as
    `stream_body` and `insert_contribution` do.
    """
    if admission.length <= services.settings.inline_bytes and not admission.plan.ticket_bytes:
        return await _receive_small(services, admission, request, digest)
    path = body_path(services.settings.upload_dir, "contribution")

    def check_and_store(body: ReceivedBody) -> UploadOutcome:
        statement = _check(services, admission, body.verified())
        body.persist()
        return _store(services, admission, path, digest, statement, body.tag)

    async with stream_body(services.settings, request, path, admission.length, digest) as body:
        return await run_in_threadpool(check_and_store, body)


async def _receive_small(services: Services, admission: Admission, request: Request, digest: str) -> UploadOutcome:
    """Receive a short contribution and store it as a row, in a group with others that arrive at the same time."""
    body = await receive_small_body(services.settings, request, admission.length, digest)
    admission.check(memoryview(body))
    write = SmallContribution(admission, new_small_key(admission.round.task_id), body, digest, services.clock)
    try:
        outcome = await services.deliveries.run(write)
    except IntegrityError:  # another process inserted this client's row after our checks: the second attempt finds it
        outcome = await services.deliveries.run(write)
    if isinstance(outcome, Stored):
        crash_point("upload.row-before-ack")
    return outcome


async def store_contribution_file(services: Services, admission: Admission, path: Path, digest: str) -> UploadOutcome:
    """Check and store a contribution that is in a synced file with SHA-256 `digest` (hex). The file is always removed.

    Raises `ContributionError` (the sender's fault) when the bytes must not enter the sum, and `Problem` as
    `insert_contribution` does.
    """
    async with services.checking:
        try:
            statement, tag = await run_in_threadpool(_check_and_tag, services, admission, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return await run_in_threadpool(_store, services, admission, path, digest, statement, tag)


def _check_and_tag(services: Services, admission: Admission, path: Path) -> tuple[bytes | None, bytes]:
    body = map_file(path)
    return _check(services, admission, body), tag_of(body)


def _check(services: Services, admission: Admission, body: memoryview) -> bytes | None:
    admission.check(body)
    return check_ticket(services, admission, body)


def _store(
    services: Services, admission: Admission, path: Path, digest: str, statement: bytes | None, tag: bytes
) -> UploadOutcome:
    """Move the file into the blob store, then insert the row that names it."""
    key = new_key("contributions", admission.round.task_id, admission.round.number, admission.client.client_id)
    try:
        services.blobs.adopt(path, key)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    crash_point("upload.stored-before-row")
    try:
        outcome = insert_contribution(services.database, admission, key, digest, services.clock.now(), statement, tag)
    except BaseException:
        _delete_unless_named(services, admission, key)
        raise
    if isinstance(outcome, AlreadyStored):
        services.blobs.delete(key)
        return outcome
    crash_point("upload.row-before-ack")
    return outcome


def _delete_unless_named(services: Services, admission: Admission, key: str) -> None:
    """Delete a blob unless a row names it: a commit may take effect although its answer is lost."""
    try:
        with services.database.read() as session:
            stored = find_contribution(session, admission.round.id, admission.client.client_id)
    except SQLAlchemyError:
        return  # the database cannot be asked: the next orphan collection deletes the blob if no row names it
    if stored is None or stored.blob_key != key:
        services.blobs.delete(key)
