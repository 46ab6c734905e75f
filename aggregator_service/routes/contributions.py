"""Contributions: whole (PUT) or in resumable chunks (PATCH, draft-ietf-httpbis-resumable-upload)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import ceil
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import delete
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.auth import PrincipalOf, member_of
from aggregator_service.contributions import Admission, admit, commit_contribution, same_or_conflict
from aggregator_service.problems import Problem
from aggregator_service.routes.common import ClientId, RoundNumber, TaskId, binary_request, guarded
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.rounds import hold_round
from aggregator_service.storage.schema import ContributionRow, RoundRow, UploadRow
from aggregator_service.uploads import content_digest, content_length, file_digest, receive_body, repr_digest
from protocols.messages import UploadReceipt

__all__ = ["router"]

router = APIRouter(prefix="/v1/tasks/{task}/rounds/{number}/contributions", tags=["contributions"])

PARTIAL_UPLOAD: Final = "application/partial-upload"
_BODIES_AT_ONCE: Final = 8
"""Whole bodies of one client that may be arriving: a retry must not wait for the connection that broke to time out."""
_REFUSALS: Final = (
    "bad-contribution",
    "bad-digest",
    "bad-request",
    "body-too-short",
    "not-in-cohort",
    "upload-timeout",
    "contribution-conflict",
    "round-closed",
    "length-required",
    "body-too-long",
)
_RECEIPT: Final = {"model": UploadReceipt, "description": "The same contribution is stored already."}


def _acknowledge(receipt: UploadReceipt, is_new: bool) -> JSONResponse:
    return JSONResponse(receipt.model_dump(mode="json"), 201 if is_new else 200)


@router.put(
    "/{client}",
    status_code=201,
    summary="Upload a contribution",
    response_model=UploadReceipt,
    openapi_extra=binary_request("The contribution, of exactly the length that the round's view states."),
    responses={
        201: {"description": "The contribution is durable; it will be counted exactly once."},
        200: _RECEIPT,
        **guarded(*_REFUSALS),
    },
)
async def put(
    services: ServicesOf,
    principal: PrincipalOf,
    request: Request,
    task: TaskId,
    number: RoundNumber,
    client: ClientId,
) -> Response:
    """Idempotent: the same bytes again are answered with the same receipt, other bytes with a conflict."""
    admission = await run_in_threadpool(admit, services, principal, task, number, client)
    content_length(request)
    digest = content_digest(request)
    if admission.stored is not None:
        return _acknowledge(same_or_conflict(admission.round, admission.stored, digest), False)
    admission.refuse_late(services.clock.now())
    length = content_length(request, exact=admission.length)
    path = services.settings.upload_dir / new_key("body", "contribution").replace("/", "-")
    with _few_at_a_time(request, client):
        await receive_body(request, services.settings, path, length, digest)
    return _acknowledge(*await commit_contribution(services, admission, path, digest))


@router.head(
    "/{client}",
    summary="Ask how far an upload came",
    response_class=Response,
    responses={
        200: {
            "description": "Where to go on.",
            "headers": {
                "Upload-Offset": {"description": "Verified bytes.", "schema": {"type": "integer"}},
                "Upload-Complete": {"description": "?1 when the contribution is stored.", "schema": {"type": "string"}},
            },
        },
        **guarded("not-in-cohort"),
    },
)
async def head(
    services: ServicesOf, principal: PrincipalOf, task: TaskId, number: RoundNumber, client: ClientId
) -> Response:
    """Upload-Offset and Upload-Complete of this client's contribution."""
    admission = await run_in_threadpool(admit, services, principal, task, number, client)
    if admission.stored is not None:
        return Response(headers=_standing(admission.stored.bytes, complete=True))
    return Response(headers=_standing(_offset(admission), complete=False))


def _standing(offset: int, *, complete: bool) -> dict[str, str]:
    return {
        "Upload-Offset": str(offset),
        "Upload-Complete": "?1" if complete else "?0",
        "Cache-Control": "no-store",
    }


def _offset(admission: Admission) -> int:
    return 0 if admission.upload is None else admission.upload.offset


@router.patch(
    "/{client}",
    status_code=201,
    summary="Upload a chunk of a contribution",
    response_model=UploadReceipt,
    openapi_extra=binary_request(
        "The next bytes of the contribution.",
        PARTIAL_UPLOAD,
        {
            "Upload-Offset": "Where the chunk starts: the bytes stored so far.",
            "Upload-Complete": "?1 for the last chunk, ?0 for others. The last one also carries Repr-Digest.",
            "Content-Digest": "sha-256=:<base64 of the SHA-256>: of the chunk (RFC 9530)",
        },
    ),
    responses={
        201: {"description": "The contribution is complete and durable."},
        200: _RECEIPT,
        204: {
            "description": "The chunk is durable.",
            "headers": {"Upload-Offset": {"description": "Verified bytes.", "schema": {"type": "integer"}}},
        },
        **guarded(*_REFUSALS, "offset-mismatch", "unsupported-media-type"),
    },
)
async def patch(
    services: ServicesOf,
    principal: PrincipalOf,
    request: Request,
    task: TaskId,
    number: RoundNumber,
    client: ClientId,
) -> Response:
    """Go on with an upload where it stands; ask with HEAD after an interruption."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != PARTIAL_UPLOAD:
        raise Problem("unsupported-media-type", f"chunks have the media type {PARTIAL_UPLOAD}")
    last = _is_last(request)
    whole = repr_digest(request) if last else ""
    chunk_digest = content_digest(request)
    member_of(principal, task, client)  # before the upload is held: strangers must not hold up a client's own
    async with _one_at_a_time(services, request, number, client):
        admission = await run_in_threadpool(admit, services, principal, task, number, client)
        if admission.stored is not None:
            return _acknowledge(_stored_already(admission.round, admission.stored, last, whole), False)
        admission.refuse_late(services.clock.now())
        offset = _check_offset(request, admission)
        length = content_length(request, most=admission.length - offset)
        if last and offset + length != admission.length:
            expected = admission.length
            raise Problem("body-too-short", f"the contribution must have {expected} bytes", expected_bytes=expected)
        path = services.settings.upload_dir / f"{admission.round.id}-{client}.part"
        try:
            await receive_body(request, services.settings, path, length, chunk_digest, start=offset)
            if not last:
                await run_in_threadpool(_remember, services, admission, path, offset + length)
                return Response(status_code=204, headers=_standing(offset + length, complete=False))
            return _acknowledge(*await _complete(services, admission, path, whole))
        except FileNotFoundError:  # the end of the round, or a whole upload of the same client, took it away
            await run_in_threadpool(_forget, services, admission)
            admission = await run_in_threadpool(admit, services, principal, task, number, client)
            return _acknowledge(_overtaken(admission, services.clock.now(), last, whole), False)


def _stored_already(round_: RoundRow, stored: ContributionRow, last: bool, whole: str) -> UploadReceipt:
    """A chunk of what is stored: the receipt again for the last one, and no place for any other."""
    if not last:
        headers = _standing(stored.bytes, complete=True)
        raise Problem("offset-mismatch", "the upload is complete", headers=headers, upload_offset=stored.bytes)
    return same_or_conflict(round_, stored, whole)


def _overtaken(admission: Admission, now: float, last: bool, whole: str) -> UploadReceipt:
    """What became of an upload whose file is gone: the receipt, or the reason."""
    if admission.stored is not None:
        return _stored_already(admission.round, admission.stored, last, whole)
    admission.refuse_late(now)
    raise Problem("conflict", "the upload was interrupted; ask with HEAD where it stands")


def _is_last(request: Request) -> bool:
    flag = request.headers.get("upload-complete", "")
    if flag not in ("?0", "?1"):
        raise Problem("bad-request", "Upload-Complete must be ?0 or ?1")
    return flag == "?1"


def _check_offset(request: Request, admission: Admission) -> int:
    given, stands = request.headers.get("upload-offset", ""), _offset(admission)
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise Problem("bad-request", "Upload-Offset must be a number of bytes")
    if int(given) != stands:
        raise Problem(
            "offset-mismatch",
            f"the upload stands at {stands} bytes: go on there",
            headers=_standing(stands, complete=False),
            upload_offset=stands,
        )
    return stands


@asynccontextmanager
async def _one_at_a_time(services: Services, request: Request, number: int, client_id: str) -> AsyncIterator[None]:
    """Two chunks of one upload never write to one file at once; the second is told to come again.

    The first may be what is left of a connection that broke unnoticed. It is given up after `body_idle_seconds`, so a
    few tries, as far apart as Retry-After says, outlast it.
    """
    busy: set[tuple[int, str]] = request.app.state.busy_uploads
    if (number, client_id) in busy:
        pause = str(ceil(services.settings.body_idle_seconds / 4))
        text = "another chunk of this upload is arriving; ask with HEAD where it stands"
        raise Problem("too-many-requests", text, headers={"Retry-After": pause})
    busy.add((number, client_id))
    try:
        yield
    finally:
        busy.discard((number, client_id))


@contextmanager
def _few_at_a_time(request: Request, client_id: str) -> Iterator[None]:
    """Each body that arrives takes its length of disk, so nobody may begin any number of them."""
    bodies: Counter[str] = request.app.state.open_bodies
    if bodies[client_id] >= _BODIES_AT_ONCE:
        text = f"{_BODIES_AT_ONCE} uploads of this client are arriving already"
        raise Problem("too-many-requests", text, headers={"Retry-After": "1"})
    bodies[client_id] += 1
    try:
        yield
    finally:
        bodies[client_id] -= 1
        if not bodies[client_id]:
            del bodies[client_id]


def _remember(services: Services, admission: Admission, path: Path, offset: int) -> None:
    def write(session: Session) -> None:
        if _held(session, admission).state != "collecting":
            path.unlink(missing_ok=True)
            raise Problem("round-closed", "the round no longer takes contributions")
        row = session.get(UploadRow, (admission.round.id, admission.client.client_id))
        if row is None:
            row = UploadRow(round_id=admission.round.id, client_id=admission.client.client_id)
            session.add(row)
        row.offset, row.file_name = offset, path.name

    services.database.transact(write)


def _held(session: Session, admission: Admission) -> RoundRow:
    return hold_round(session, admission.round.id, admission.client.client_id)


def _refuse_if_over(services: Services, admission: Admission) -> None:
    with services.database.write() as session:
        if _held(session, admission).state != "collecting":
            raise Problem("round-closed", "the round no longer takes contributions")


async def _complete(services: Services, admission: Admission, path: Path, whole: str) -> tuple[UploadReceipt, bool]:
    """The last chunk is there: check the whole; an upload that turns out wrong starts again from nothing."""
    try:
        if await run_in_threadpool(file_digest, path) != whole:
            path.unlink(missing_ok=True)
            # the end of the round may have taken the file away before this chunk opened it anew
            await run_in_threadpool(_refuse_if_over, services, admission)
            raise Problem("bad-digest", "the SHA-256 of the whole contribution is not the one in Repr-Digest")
        return await commit_contribution(services, admission, path, whole)
    except BaseException:
        await asyncio.shield(run_in_threadpool(_forget, services, admission))
        raise


def _forget(services: Services, admission: Admission) -> None:
    mine = UploadRow.round_id == admission.round.id, UploadRow.client_id == admission.client.client_id
    with services.database.write() as session:
        session.execute(delete(UploadRow).where(*mine), execution_options={"synchronize_session": False})
