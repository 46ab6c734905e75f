"""Shared by the routes: typed parameters, OpenAPI parts, and responses with stored bytes."""

from __future__ import annotations

import re
import weakref
from typing import Annotated, Any, Final

from fastapi import Header, Path, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BeforeValidator
from starlette.types import Receive, Scope, Send

from aggregator_service.access.principals import Enrolled, Principal
from aggregator_service.http.fields import LONGEST_WAIT, digest_header, not_modified
from aggregator_service.problems import responses
from aggregator_service.services import Services
from protocols.messages import UploadReceipt
from protocols.messages.stages import OCTETS

_LARGEST_NUMBER: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)

TaskId = Annotated[str, Path(description="Task id.", max_length=40, examples=["t_0f3a9c5b7d1e2f4a6b8c"])]
ClientId = Annotated[str, Path(description="Client id.", max_length=40, examples=["c_9b1d3f5a7c2e4f6a8b0d"])]


def _plain_number(value: object) -> object:
    """Refuse other forms of a number than its digits, such as 01 or 1.0: each resource has one address."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError("a number is written in decimal digits, without leading zeros")
    return value


RoundNumber = Annotated[
    int,
    Path(description="Round number, from 1.", ge=1, le=_LARGEST_NUMBER, examples=[1]),
    BeforeValidator(_plain_number),
]
SnapshotNumber = Annotated[
    int,
    Path(
        description="Round number; 0 for the initial model of a task that starts from another task's.",
        ge=0,
        le=_LARGEST_NUMBER,
        examples=[1],
    ),
    BeforeValidator(_plain_number),
]
Wait = Annotated[float, Query(description="Long poll: seconds to wait at most.", ge=0, le=LONGEST_WAIT, examples=[20])]
IfNoneMatch = Annotated[str | None, Header(description="ETag of the version that the client has.")]


def guarded(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route that needs a token: problem types `slugs` and those of all such routes."""
    authentication = ("unauthenticated", "bad-signature", "stale-signature")
    always = (*authentication, "forbidden", "not-found", "invalid-parameters", "too-many-requests")
    return responses(*always, "internal-error", "unavailable", *slugs)


def binary_request(
    description: str,
    media_type: str | tuple[str, ...] = OCTETS,
    headers: dict[str, str] | None = None,
    optional: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the `openapi_extra=` of a route whose request body is raw bytes.

    headers: required headers by name with their descriptions, Content-Digest by default. optional: those that some
    requests have.
    """
    named = headers if headers is not None else {"Content-Digest": "sha-256=:<base64 of the SHA-256>: (RFC 9530)"}
    schema = {"type": "string", "format": "binary"}
    content = {one: {"schema": schema} for one in ((media_type,) if isinstance(media_type, str) else media_type)}
    return {
        "requestBody": {"required": True, "description": description, "content": content},
        "parameters": [
            {"name": name, "in": "header", "required": name in named, "description": text, "schema": {"type": "string"}}
            for name, text in (named | (optional or {})).items()
        ],
    }


def binary_response(description: str, media_type: str = OCTETS) -> dict[int | str, dict[str, Any]]:
    """Return the 200 entry of the `responses=` of a route that answers with raw bytes."""
    return {
        200: {
            "description": description,
            "content": {media_type: {"schema": {"type": "string", "format": "binary"}}},
            "headers": {
                "Content-Digest": {"description": "SHA-256 of the body (RFC 9530).", "schema": {"type": "string"}},
                "ETag": {"description": "The digest, as a strong validator.", "schema": {"type": "string"}},
            },
        }
    }


def blob_response(
    services: Services,
    request: Request,
    principal: Principal,
    key: str,
    digest: str,
    length: int,
    if_none_match: str | None,
) -> Response:
    """Return a response with a stored blob, 304 if `if_none_match` names its digest.

    A long blob is streamed in constant memory, a short one may come from memory (`storage.blobs`).

    principal: who asks; a client may have eight streamed downloads open. key, digest, length: the blob's key, SHA-256
    (hex) and bytes. Raises `Problem` too-many-requests; `BlobDamagedError` if the stored bytes do not match the digest,
    before the response starts; and `BlobsUnavailableError`.
    """
    headers = _immutable(digest)
    if not_modified(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    headers["Content-Digest"] = digest_header(digest)
    kept = services.recent_blobs.read(services.blobs, key, digest, length)
    if kept is not None:
        return Response(kept, media_type=OCTETS, headers=headers)
    headers["Content-Length"] = str(length)
    if request.method == "HEAD":
        services.blobs.chunks(key, digest)
        return Response(media_type=OCTETS, headers=headers)
    if not isinstance(principal, Enrolled):
        return StreamingResponse(services.blobs.chunks(key, digest), media_type=OCTETS, headers=headers)
    return _LimitedResponse(services, principal.client_id, key, digest, headers)


class _LimitedResponse(StreamingResponse):
    """A streamed download, which counts as open until the response is sent, or dropped without being sent."""

    def __init__(self, services: Services, client_id: str, key: str, digest: str, headers: dict[str, str]) -> None:
        services.limits.open_download(client_id)
        self._close = weakref.finalize(self, services.limits.close_download, client_id)
        super().__init__(services.blobs.chunks(key, digest), media_type=OCTETS, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def receipt_response(receipt: UploadReceipt, status: int) -> Response:
    """Return the acknowledgement of an upload."""
    return Response(receipt.model_dump_json(), status, media_type="application/json")


def bytes_response(body: bytes, digest: str, if_none_match: str | None, media_type: str = OCTETS) -> Response:
    """Return a response with immutable bytes and the headers of `blob_response`; digest: their SHA-256 (hex)."""
    headers = _immutable(digest)
    if not_modified(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers | {"Content-Digest": digest_header(digest)})


def _immutable(digest: str) -> dict[str, str]:
    """Return the headers of bytes that do not change; digest: their SHA-256 (hex)."""
    return {"ETag": f'"{digest}"', "Cache-Control": "private, immutable"}
