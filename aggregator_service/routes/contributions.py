"""Contributions: whole (PUT) or in resumable chunks (PATCH, draft-ietf-httpbis-resumable-upload)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from aggregator_service.http.authentication import PrincipalOf
from aggregator_service.http.digests import content_digest, content_length, repr_digest
from aggregator_service.problems import Problem
from aggregator_service.routes.common import ClientId, RoundNumber, TaskId, binary_request, guarded
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.schema import ContributionRow, RoundRow
from aggregator_service.uploads.admission import Admission, admit, admit_cached
from aggregator_service.uploads.chunks import MOST_CHUNKS, Chunk, UploadChangedError, complete_upload, store_chunk
from aggregator_service.uploads.contributions import receive_contribution
from aggregator_service.uploads.insert_contribution import same_or_conflict
from aggregator_service.uploads.outcomes import AlreadyStored, Stored, UploadOutcome
from aggregator_service.uploads.receive import stream_body
from protocols.messages import UploadReceipt

__all__ = ["router"]

router = APIRouter(prefix="/v1/tasks/{task}/rounds/{number}/contributions", tags=["contributions"])

PARTIAL_UPLOAD: Final = "application/partial-upload"
_BODIES_AT_ONCE: Final = 8
"""Bodies of one client that may be arriving: a retry must not wait for the connection that broke to time out."""
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


def _acknowledge(outcome: UploadOutcome) -> JSONResponse:
    return JSONResponse(outcome.receipt.model_dump(mode="json"), 201 if isinstance(outcome, Stored) else 200)


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
    admission = await admit_cached(services, principal, task, number, client)
    content_length(request)
    digest = content_digest(request)
    if admission.stored is not None:
        return _acknowledge(AlreadyStored(same_or_conflict(admission.round, admission.stored, digest)))
    admission.refuse_late(services.clock.now())
    content_length(request, exact=admission.length)
    with _few_at_a_time(request, client):
        return _acknowledge(await receive_contribution(services, admission, request, digest))


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
    admission = await run_in_threadpool(admit, services, principal, task, number, client, resumable=True)
    if admission.stored is not None:
        return Response(headers=_standing(admission.stored.bytes, complete=True))
    return Response(headers=_standing(admission.status[0], complete=False))


def _standing(offset: int, *, complete: bool) -> dict[str, str]:
    return {
        "Upload-Offset": str(offset),
        "Upload-Complete": "?1" if complete else "?0",
        "Cache-Control": "no-store",
    }


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
    digest = content_digest(request)
    admission = await run_in_threadpool(admit, services, principal, task, number, client, resumable=True)
    if admission.stored is not None:
        return _acknowledge(AlreadyStored(_stored_already(admission.round, admission.stored, last, whole)))
    admission.refuse_late(services.clock.now())
    chunk = _announced(services, request, admission, last, digest)
    with _few_at_a_time(request, client):
        # room for the chunks before it, which the last one is put together with
        room = chunk.offset if last else 0
        async with stream_body(services, request, chunk.path, chunk.length, chunk.digest, start=room) as body:
            await run_in_threadpool(body.persist)
    try:
        if last:
            return _acknowledge(await complete_upload(services, admission, chunk, whole))
        await run_in_threadpool(store_chunk, services, admission, chunk)
    except UploadChangedError:
        admission = await run_in_threadpool(admit, services, principal, task, number, client, resumable=True)
        return _acknowledge(AlreadyStored(_overtaken(request, admission, services.clock.now(), last, whole)))
    return Response(status_code=204, headers=_standing(chunk.offset + chunk.length, complete=False))


def _announced(services: Services, request: Request, admission: Admission, last: bool, digest: str) -> Chunk:
    """What the headers say of a chunk that goes on where the upload stands."""
    offset = _check_offset(request, admission)
    length = content_length(request, most=admission.length - offset)
    if last and offset + length != admission.length:
        expected = admission.length
        raise Problem("body-too-short", f"the contribution must have {expected} bytes", expected_bytes=expected)
    if not last and admission.status[1] >= MOST_CHUNKS:
        raise Problem("bad-request", f"an upload has at most {MOST_CHUNKS} chunks and a last one: send longer ones")
    path = services.settings.upload_dir / new_key("body", "chunk").replace("/", "-")
    return Chunk(path, offset, length, digest)


def _stored_already(round_: RoundRow, stored: ContributionRow, last: bool, whole: str) -> UploadReceipt:
    """A chunk of what is stored: the receipt again for the last one, and no place for any other."""
    if not last:
        headers = _standing(stored.bytes, complete=True)
        raise Problem("offset-mismatch", "the upload is complete", headers=headers, upload_offset=stored.bytes)
    return same_or_conflict(round_, stored, whole)


def _overtaken(request: Request, admission: Admission, now: float, last: bool, whole: str) -> UploadReceipt:
    """What became of an upload that something came in between of: the receipt, or the reason."""
    if admission.stored is not None:
        return _stored_already(admission.round, admission.stored, last, whole)
    admission.refuse_late(now)
    _check_offset(request, admission)
    raise Problem("conflict", "the upload was interrupted; ask with HEAD where it stands")


def _is_last(request: Request) -> bool:
    flag = request.headers.get("upload-complete", "")
    if flag not in ("?0", "?1"):
        raise Problem("bad-request", "Upload-Complete must be ?0 or ?1")
    return flag == "?1"


def _check_offset(request: Request, admission: Admission) -> int:
    given, stands = request.headers.get("upload-offset", ""), admission.status[0]
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
