"""Contributions: whole (PUT) or in resumable chunks (PATCH, draft-ietf-httpbis-resumable-upload)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.http.authentication import PrincipalOf
from aggregator_service.http.fields import check_length, check_media_type, content_digest, content_length, digest_in
from aggregator_service.problems import Problem
from aggregator_service.routes.common import (
    ClientId,
    RawBodyOf,
    RoundNumber,
    TaskId,
    api_router,
    binary_request,
    guarded,
    headers_of,
    receipt_response,
)
from aggregator_service.services import ServicesOf
from aggregator_service.storage.data_directory import body_path
from aggregator_service.storage.schema import ContributionRow
from aggregator_service.uploads.checks import Admission, admit, check_request
from aggregator_service.uploads.chunks import MOST_CHUNKS, Chunk, UploadChangedError, complete_upload, store_chunk
from aggregator_service.uploads.new_contributions import (
    already_stored,
    receive_contribution,
    signed,
)
from aggregator_service.uploads.receive import stream_body
from protocols.messages import UploadReceipt
from protocols.messages.stages import CONTRIBUTION, OCTETS, PARTIAL_UPLOAD

router = api_router("/v1/tasks/{task}/rounds/{number}/contributions", tag="contributions")

_REFUSALS: Final = (
    "aggregate-mismatch",
    "bad-contribution",
    "body-too-short",
    "not-in-cohort",
    "contribution-conflict",
    "round-closed",
    "length-required",
)
_OF_HIDDEN_VALUES: Final = {
    "Aggregate-Chain": "Rounds with an `aggregate_chain`: those 64 hexadecimal digits, see docs/wire/requests.md.",
}
_RECEIPT: Final = {"model": UploadReceipt, "description": "The same contribution was stored before."}
_ALL_STORED: Final = {"Upload-Complete": "?1"}
_COMPLETE: Final = headers_of({"Upload-Complete": "?1 when the contribution is stored."})
_OFFSET: Final = headers_of({"Upload-Offset": "Bytes stored and verified."}, "integer")
_LENGTH: Final = headers_of({"Upload-Length": "Bytes of the contribution."}, "integer")
_LIMIT: Final = headers_of(
    {
        "Upload-Limit": "max-size and min-size: the length of the contribution; min-append-size: shortest chunk but "
        "the last one; max-age: seconds until the round takes no more contributions."
    }
)


def _limits(clock: Clock, admission: Admission) -> dict[str, str]:
    """Return the header Upload-Limit. Chunks of `min-append-size` bytes are never too many."""
    shortest = -(-admission.length // (MOST_CHUNKS + 1))
    seconds = max(0, int(admission.round.deadline - clock.now()))
    sizes = f"max-size={admission.length}, min-size={admission.length}, min-append-size={shortest}"
    return {"Upload-Limit": f"{sizes}, max-age={seconds}"}


@router.put(
    "/{client}",
    status_code=201,
    summary="Upload a contribution",
    response_model=UploadReceipt,
    openapi_extra=binary_request(
        "The contribution, exactly `contribution_bytes` of the round's view long.",
        *(OCTETS, CONTRIBUTION),
        optional=_OF_HIDDEN_VALUES,
    ),
    responses={
        201: {"description": "The contribution is stored durably. It is counted exactly once."},
        200: _RECEIPT,
        **guarded(*_REFUSALS),
    },
)
async def put(
    request: Request,
    raw: RawBodyOf,
    task: TaskId,
    number: RoundNumber,
    client: ClientId,
) -> Response:
    """Upload a contribution in one request. Idempotent: the same bytes get the same receipt, other bytes a conflict."""
    services = raw.services
    admission = await check_request(services, raw.principal, request, task, number, client)
    check_media_type(request, CONTRIBUTION)
    length, digest = raw.announced()
    if admission.stored is not None:
        outcome = already_stored(admission.round, admission.stored, digest)
    else:
        check_length(length, admission.length)
        outcome = await receive_contribution(services, admission, request, digest)
    return receipt_response(signed(admission, outcome))


@router.head(
    "/{client}",
    status_code=204,
    summary="Ask how far an upload came",
    response_class=Response,
    responses={
        204: {"description": "Where the upload continues.", "headers": _OFFSET | _LENGTH | _COMPLETE | _LIMIT},
        **guarded("not-in-cohort"),
    },
)
async def head(
    services: ServicesOf, principal: PrincipalOf, task: TaskId, number: RoundNumber, client: ClientId
) -> Response:
    """Return the state of an upload in the headers Upload-Offset, Upload-Complete, Upload-Length and Upload-Limit."""
    admission = await run_in_threadpool(admit, services.database, principal, task, number, client, resumable=True)
    if admission.stored is not None:
        headers = _progress_headers(admission.stored.bytes, complete=True)
    else:
        headers = _progress_headers(admission.status[0], complete=False)
    headers |= {"Upload-Length": str(admission.length), **_limits(services.clock, admission)}
    return Response(status_code=204, headers=headers)


def _progress_headers(offset: int, *, complete: bool) -> dict[str, str]:
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
        headers={
            "Upload-Offset": "Where the chunk starts: the number of bytes stored so far.",
            "Upload-Complete": "?1 for the last chunk, ?0 for others. The last one also carries Repr-Digest.",
            "Content-Digest": "sha-256=:<base64 of the SHA-256>: of the chunk (RFC 9530)",
        },
        optional={
            "Repr-Digest": "Of the whole contribution, required with the last chunk (RFC 9530).",
            "Upload-Length": "Bytes of the contribution; any other number is refused.",
            **_OF_HIDDEN_VALUES,
        },
    ),
    responses={
        201: {"description": "The contribution is complete and stored durably.", "headers": _COMPLETE},
        200: {**_RECEIPT, "headers": _COMPLETE},
        204: {"description": "The chunk is stored durably.", "headers": _OFFSET | _COMPLETE},
        **guarded(*_REFUSALS, "inconsistent-length", "offset-mismatch", "unsupported-media-type"),
    },
)
async def patch(
    services: ServicesOf,
    principal: PrincipalOf,
    request: Request,
    _raw: RawBodyOf,
    task: TaskId,
    number: RoundNumber,
    client: ClientId,
) -> Response:
    """Upload the next chunk. After an interruption, ask with HEAD where the upload continues."""
    admission = await check_request(services, principal, request, task, number, client, resumable=True)
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != PARTIAL_UPLOAD:
        accepted = {"Accept-Patch": PARTIAL_UPLOAD}
        raise Problem("unsupported-media-type", f"chunks have the media type {PARTIAL_UPLOAD}", headers=accepted)
    last = _is_last(request)
    whole = digest_in(request, "Repr-Digest") if last else ""
    digest = content_digest(request)
    if admission.stored is not None:
        return _answer_complete(request, admission, admission.stored, last, whole)
    path = body_path(services.settings.upload_dir, "chunk")
    chunk = _announced_chunk(services.clock, request, admission, last, path, digest)
    # the last chunk is written behind the space for the chunks before it
    room = chunk.offset if last else 0
    receiving = stream_body(services.settings, request, chunk.path, chunk.length, chunk.digest, start=room)
    try:
        async with receiving as body:
            await run_in_threadpool(body.persist)
            if last:
                outcome = await complete_upload(services, admission, chunk, whole)
                return receipt_response(signed(admission, outcome), _ALL_STORED)
            await run_in_threadpool(store_chunk, services.database, services.blobs, admission, chunk)
    except UploadChangedError:
        admission = await run_in_threadpool(admit, services.database, principal, task, number, client, resumable=True)
        return _answer_overtaken(services.clock, request, admission, last, whole)
    return Response(status_code=204, headers=_progress_headers(chunk.offset + chunk.length, complete=False))


def _announced_chunk(
    clock: Clock, request: Request, admission: Admission, last: bool, path: Path, digest: str
) -> Chunk:
    """Return the chunk that the headers announce; raise `Problem` if it does not continue the upload."""
    expected = admission.length
    if request.headers.get("upload-length", str(expected)) != str(expected):
        raise Problem("inconsistent-length", f"the contribution has {expected} bytes", expected_bytes=expected)
    offset = _check_offset(request, admission)
    try:
        length = content_length(request, most=expected - offset)
    except Problem as problem:
        if problem.slug == "body-too-long":
            problem.headers |= _limits(clock, admission)
        raise
    if last and offset + length != expected:
        raise Problem("body-too-short", f"the contribution must have exactly {expected} bytes", expected_bytes=expected)
    if not last and admission.status[1] >= MOST_CHUNKS:
        raise Problem("bad-request", f"an upload has at most {MOST_CHUNKS} chunks and the last one; send longer chunks")
    return Chunk(path, offset, length, digest)


def _answer_complete(
    request: Request, admission: Admission, stored: ContributionRow, last: bool, whole: str
) -> Response:
    """Answer a chunk of a complete upload: the receipt for the last chunk, `Problem` offset-mismatch for others."""
    if not last:
        headers = _progress_headers(stored.bytes, complete=True)
        offsets = {"expected-offset": stored.bytes, "provided-offset": _stated_offset(request)}
        raise Problem("offset-mismatch", "the upload is complete", headers=headers, **offsets)
    outcome = already_stored(admission.round, stored, whole)
    return receipt_response(signed(admission, outcome), _ALL_STORED)


def _answer_overtaken(clock: Clock, request: Request, admission: Admission, last: bool, whole: str) -> Response:
    """Answer a chunk whose upload was changed by another request meanwhile: the receipt, or a `Problem`."""
    if admission.stored is not None:
        return _answer_complete(request, admission, admission.stored, last, whole)
    admission.refuse_late(clock.now())
    _check_offset(request, admission)
    raise Problem("conflict", "another request changed the upload; ask with HEAD where it continues")


def _is_last(request: Request) -> bool:
    flag = request.headers.get("upload-complete", "")
    if flag not in ("?0", "?1"):
        raise Problem("bad-request", "Upload-Complete must be ?0 or ?1")
    return flag == "?1"


def _check_offset(request: Request, admission: Admission) -> int:
    given, stored = _stated_offset(request), admission.status[0]
    if given != stored:
        headers = _progress_headers(stored, complete=False)
        offsets = {"expected-offset": stored, "provided-offset": given}
        raise Problem("offset-mismatch", f"the upload has {stored} bytes; continue there", headers=headers, **offsets)
    return stored


def _stated_offset(request: Request) -> int:
    given = request.headers.get("upload-offset", "")
    if not given.isascii() or not given.isdigit() or len(given) > 15:  # of RFC 9651: an Integer has 15 digits
        raise Problem("bad-request", "Upload-Offset must be a number of bytes")
    return int(given)
