"""Shared by the routes: typed parameters, OpenAPI parts, the bodies of requests, and responses with stored bytes.

The JSON body of a request is checked before FastAPI parses it; raw bytes are received by their routes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.params import Depends as Dependency
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from aggregator_service.access.principals import Enrolled, Principal
from aggregator_service.http.fields import (
    LONGEST_WAIT,
    content_digest,
    content_length,
    digest_header,
    digest_in,
    not_modified,
)
from aggregator_service.problems import Problem, responses
from aggregator_service.services import Services, ServicesOf
from aggregator_service.settings import Tuning
from aggregator_service.uploads.receive import receive_small_body
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


# --- bodies of requests -----------------------------------------------------------------------------------------------


class RawBody:
    """The raw bytes that a request sends. A route receives them itself by asking for this dependency."""

    def __init__(self, services: Services, request: Request) -> None:
        self._services, self._request = services, request

    def announced(self, *, exact: int | None = None, most: int | None = None) -> tuple[int, str]:
        """Return the length in bytes and the SHA-256 (hex) that the headers announce.

        exact, most: bytes that the body must have, or may have at most. Raises `Problem`: length-required,
        body-too-long, body-too-short, bad-digest.
        """
        return content_length(self._request, exact=exact, most=most), content_digest(self._request)

    async def receive(self, *, exact: int | None = None, most: int | None = None) -> bytes:
        """Return a body of at most a few hundred KiB with the announced length and digest.

        exact, most: bytes that it must have, or may have at most. Raises `Problem`: length-required, body-too-long,
        body-too-short, bad-digest, upload-timeout.
        """
        length, digest = self.announced(exact=exact, most=most)
        return await receive_small_body(self._services.settings, self._request, length, digest)

    async def store(
        self, write: Callable[[Session, bytes], bool], *, exact: int | None = None, most: int | None = None
    ) -> Response:
        """Receive the body as `receive` does, and give it to `write` in a transaction.

        Returns 201 if `write` stored it, 200 if the same was stored before.
        """
        body = await self.receive(exact=exact, most=most)
        transact = self._services.database.transact
        stored = await run_in_threadpool(lambda: transact(lambda session: write(session, body)))
        return Response(status_code=201 if stored else 200)


async def _raw_body(services: ServicesOf, request: Request) -> RawBody:  # FastAPI would call the class in a thread
    return RawBody(services, request)


RawBodyOf = Annotated[RawBody, Depends(_raw_body)]
"""The raw body of the request, for routes that receive it themselves."""


class CheckedRoute(APIRoute):
    """A route whose JSON body is checked before FastAPI parses it: length, time, digest and media type.

    A route that asks for `RawBody` receives its body itself. Starlette's limit of body sizes is not used: it replaces
    every response to a body that is too long by plain text. takes_json: False where bodies are forms.
    """

    takes_json: ClassVar[bool] = True

    async def longest_body(self, request: Request) -> int:
        """Return the length in bytes of the longest body; called before any of it is read."""
        tuning: Tuning = request.app.state.services.settings.tuning
        return tuning.json_body_limit

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler of the route, after the checks."""
        handle = super().get_route_handler()
        if any(one.call is _raw_body for one in self.dependant.dependencies):
            return handle

        async def checked(request: Request) -> Response:
            if request.headers.get("content-length", "0") != "0":
                await _check_body(request, await self.longest_body(request), takes_json=self.takes_json)
            return await handle(request)

        return checked


def api_router(prefix: str = "", *, tag: str, dependencies: Sequence[Dependency] = ()) -> APIRouter:
    """Return a router of the API. dependencies: of all its routes."""
    return APIRouter(prefix=prefix, tags=[tag], dependencies=dependencies, route_class=CheckedRoute)


async def _check_body(request: Request, longest: int, *, takes_json: bool) -> None:
    """Read the whole body, which the request keeps for FastAPI; raise `Problem` unless it is as it should be."""
    settings = request.app.state.services.settings
    if int(request.headers["content-length"]) > longest:
        what = "JSON body" if takes_json else "form"
        raise Problem("body-too-long", f"the {what} is longer than {longest} bytes")
    try:
        async with asyncio.timeout(settings.tuning.body_idle_seconds):
            body = await request.body()
    except TimeoutError:
        raise Problem("upload-timeout", "the body did not arrive in time") from None
    except ClientDisconnect:
        raise Problem("bad-request", "the connection closed before the end of the body") from None
    announced = request.headers.get("content-digest")
    if announced is not None:
        digest = digest_in(announced, "Content-Digest")
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), digest):
            raise Problem("bad-digest", "the SHA-256 of the body does not match the header Content-Digest")
    if takes_json and not _is_json(request.headers.get("content-type", "")):
        text = "the body of this request must be JSON: send Content-Type: application/json"
        raise Problem("unsupported-media-type", text)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


# --- responses with stored bytes --------------------------------------------------------------------------------------


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
