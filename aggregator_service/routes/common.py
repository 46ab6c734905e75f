"""Shared by the routes: typed parameters, OpenAPI parts, the bodies of requests, and responses with stored bytes.

The JSON body of a request is checked before FastAPI parses it; raw bytes are received by their routes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.params import Depends as Dependency
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from aggregator_service.access.principals import Enrolled, Principal
from aggregator_service.access.rate_limits import AtOnce
from aggregator_service.http.authentication import Authenticated
from aggregator_service.http.fields import (
    JSON_CACHING,
    LONGEST_WAIT,
    content_digest,
    content_length,
    digest_header,
    digest_in,
    not_modified,
)
from aggregator_service.problems import Problem, responses
from aggregator_service.services import Services, services_of
from aggregator_service.settings import Tuning
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.uploads.new_contributions import UploadOutcome
from aggregator_service.uploads.receive import receive_small_body
from aggregator_service.uploads.shares import Download
from protocols.messages.stages import OCTETS

_NUMBER: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)

TaskId = Annotated[str, Path(description="Task id.", max_length=40, examples=["t_0f3a9c5b7d1e2f4a6b8c"])]
ClientId = Annotated[str, Path(description="Client id.", max_length=40, examples=["c_9b1d3f5a7c2e4f6a8b0d"])]


def _plain_number(value: object) -> object:
    """Refuse other forms of a number than its digits, such as 01 or 1.0: each resource has one address."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError("a number is written in decimal digits, without leading zeros")
    return value


def _number(description: str, least: int) -> Any:
    return Path(description=description, ge=least, le=2**31 - 1, examples=[1])


_INITIAL: Final = "Round number; 0 for the initial model of a task that starts from another task's."
RoundNumber = Annotated[int, _number("Round number, from 1.", 1), BeforeValidator(_plain_number)]
SnapshotNumber = Annotated[int, _number(_INITIAL, 0), BeforeValidator(_plain_number)]
Wait = Annotated[float, Query(description="Long poll: seconds to wait at most.", ge=0, le=LONGEST_WAIT, examples=[20])]
ETAG_TEXT: Final = "ETag of the version that the client has."
IfNoneMatch = Annotated[str | None, Header(description=ETAG_TEXT)]


def guarded(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route that needs a token: problem types `slugs` and those of all such routes."""
    authentication = ("unauthenticated", "bad-signature", "stale-signature")
    always = (*authentication, "forbidden", "not-found", "invalid-parameters", "too-many-requests")
    return responses(*always, "internal-error", "unavailable", *slugs)


def headers_of(texts: Mapping[str, str], kind: str = "string", *, always: bool = True) -> dict[str, Any]:
    """Return the `headers` of an OpenAPI answer: names with descriptions, all of the JSON type `kind`.

    always: whether every such answer has them.
    """
    return {
        name: {"description": text, **({"required": True} if always else {}), "schema": {"type": kind}}
        for name, text in texts.items()
    }


def _raw_content(*media_types: str) -> dict[str, Any]:
    return {one: {"schema": {"type": "string", "format": "binary"}} for one in media_types}


def binary_request(
    description: str,
    *media_types: str,
    headers: Mapping[str, str] = MappingProxyType({"Content-Digest": "sha-256=:<base64 of the SHA-256>: (RFC 9530)"}),
    optional: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the `openapi_extra=` of a route whose request body is raw bytes.

    media_types: by default plain bytes. headers: required headers by name with their descriptions. optional: those that
    some requests have.
    """
    return {
        "requestBody": {
            "required": True,
            "description": description,
            "content": _raw_content(*(media_types or (OCTETS,))),
        },
        "parameters": [
            {"name": name, "in": "header", **described, "required": name in headers}
            for name, described in headers_of({**headers, **optional}).items()
        ],
    }


def replaced(request: str) -> dict[str, Any]:
    """Return the arguments of a PUT route, which needs a token, for raw bytes; request: describes them."""
    return {
        "response_class": Response,
        "openapi_extra": binary_request(request),
        "responses": guarded("body-too-short", "conflict", "length-required"),
    }


def stored_once(request: str, stored: str, again: str) -> dict[str, Any]:
    """Return the arguments of a route as `replaced` does, where the first bytes stand.

    stored, again: describe the answers 201, and 200 to the same bytes.
    """
    put = replaced(request)
    answers = {201: {"description": stored}, 200: {"description": again}, **put["responses"]}
    return {**put, "status_code": 201, "responses": answers}


def binary_response(description: str, *slugs: str, media_type: str = OCTETS) -> dict[str, Any]:
    """Return the arguments of a route, which needs a token, that answers with raw bytes through `AnswerOf`.

    slugs: problem types besides those of `guarded`.
    """
    headers = {"Content-Digest": "SHA-256 of the body (RFC 9530).", "ETag": "The digest, as a strong validator."}
    found = {"description": description, "content": _raw_content(media_type), "headers": headers_of(headers)}
    return {
        "response_class": Response,
        "responses": {200: found, 304: {"description": "Not modified."}, **guarded(*slugs)},
    }


TAGGED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"headers": headers_of({"ETag": "Changes with the answer.", "Cache-Control": f"`{JSON_CACHING}`"})},
    304: {"description": "The answer has not changed since the ETag in If-None-Match."},
    **guarded(),
}
"""The `responses=` of a route, which needs a token, that answers with JSON through `AnswerOf`."""


# --- bodies of requests -----------------------------------------------------------------------------------------------


class RawBody:
    """The raw bytes that a request sends. A route receives them itself by asking for this dependency.

    services, principal: of the process and of the request, so that a route need not ask for them, too.
    """

    def __init__(self, services: Services, principal: Principal, request: Request) -> None:
        self.services, self.principal, self._request = services, principal, request

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
        return await receive_small_body(self.services.settings, self._request, length, digest)

    async def store(
        self, write: Callable[[Session, bytes], bool], *, exact: int | None = None, most: int | None = None
    ) -> Response:
        """Receive the body as `receive` does, and give it to `write` in a transaction.

        Returns 201 if `write` stored it, 200 if the same was stored before.
        """
        body = await self.receive(exact=exact, most=most)
        transact = self.services.database.transact
        stored = await run_in_threadpool(lambda: transact(lambda session: write(session, body)))
        return Response(status_code=201 if stored else 200)


def _raw_body(request: Request, principal: Principal) -> RawBody:
    """Return the body to a route of whoever has no eight uploads under way: else `Problem` too-many-requests."""
    services = services_of(request)
    sender = principal.client_id if isinstance(principal, Enrolled) else f"operator {principal.name}"
    services.uploads.start(sender)
    request.scope[_UPLOADER] = sender
    return RawBody(services, principal, request)


_UPLOADER: Final = "hushrec.uploader"
"""Scope key: whose upload the request counts as."""


_RAW_BODY: Final = Authenticated(_raw_body)
RawBodyOf = Annotated[RawBody, Depends(_RAW_BODY)]
"""The raw body of the request, for routes that receive it themselves; it counts as an upload of its sender."""


class CheckedRoute(APIRoute):
    """A route whose JSON body is checked before FastAPI parses it: length, time, digest and media type.

    A route that asks for `RawBody` receives its body itself. Starlette's limit of body sizes is not used: it replaces
    every response to a body that is too long by plain text.
    """

    takes_json: ClassVar[bool] = True
    """False where bodies are forms."""

    async def longest_body(self, request: Request) -> int:
        """Return the length in bytes of the longest body; called before any of it is read."""
        tuning: Tuning = request.app.state.services.settings.tuning
        return tuning.json_body_limit

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler of the route, after the checks."""
        handle = super().get_route_handler()
        if any(one.call is _RAW_BODY for one in self.dependant.dependencies):

            async def counted(request: Request) -> Response:
                try:
                    return await handle(request)
                finally:  # a dependency that yields costs more than the count itself
                    if _UPLOADER in request.scope:
                        request.app.state.services.uploads.end(request.scope[_UPLOADER])

            return counted

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
    if "content-digest" in request.headers:
        digest = digest_in(request, "Content-Digest")
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), digest):
            raise Problem("bad-digest", "the SHA-256 of the body does not match the header Content-Digest")
    if takes_json and not _is_json(request.headers.get("content-type", "")):
        text = "the body of this request must be JSON: send Content-Type: application/json"
        raise Problem("unsupported-media-type", text)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


# --- answers that a client may have already ---------------------------------------------------------------------------


class Answer:
    """Answers 200 or, if If-None-Match of the request names the ETag of the answer, 304.

    services, principal: see `RawBody`. digest: the SHA-256 of a body, hex.
    """

    def __init__(self, services: Services, principal: Principal, known: str | None) -> None:
        self.services, self.principal, self._known = services, principal, known

    def json(self, view: BaseModel) -> Response:
        """Answer with a view, of which a client may keep a copy, but asks before each use whether it changed."""
        body = view.model_dump_json().encode()
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"', "Cache-Control": JSON_CACHING}
        return self._unchanged(headers) or Response(body, media_type="application/json", headers=headers)

    def bytes(self, body: bytes, digest: str, media_type: str = OCTETS) -> Response:
        """Answer with bytes that never change."""
        headers = _immutable(digest)
        return self._unchanged(headers) or Response(
            body, media_type=media_type, headers=headers | {"Content-Digest": digest_header(digest)}
        )

    def pieces(self, found: Download) -> Response:
        """Answer with what a member of the committee fetches."""
        headers = {"ETag": f'"{found.survivors}"', "Cache-Control": "private"}
        return self._unchanged(headers) or StreamingResponse(
            found.pieces, media_type=OCTETS, headers=headers | {"Content-Length": str(found.length)}
        )

    def blob(self, key: str | None, digest: str | None, length: int | None, *, missing: str) -> Response:
        """Answer with a stored blob; `Problem` not-found with the text `missing` if there is none.

        A long blob is streamed in constant memory, a short one may come from memory (`storage.blobs`).

        key, digest, length: the blob's key, SHA-256 (hex) and bytes. Raises `Problem` too-many-requests: a client may
        have eight streamed downloads open; `BlobDamagedError` if the stored bytes do not match the digest, before the
        response starts; and `BlobsUnavailableError`.
        """
        if key is None or digest is None or length is None:
            raise Problem("not-found", missing)
        headers, services = _immutable(digest), self.services
        unchanged = self._unchanged(headers)
        if unchanged is not None:
            return unchanged
        headers["Content-Digest"] = digest_header(digest)
        kept = services.recent_blobs.read(services.blobs, key, digest, length)
        if kept is not None:
            return Response(kept, media_type=OCTETS, headers=headers)
        headers["Content-Length"] = str(length)
        if not isinstance(self.principal, Enrolled):
            return StreamingResponse(services.blobs.chunks(key, digest), media_type=OCTETS, headers=headers)
        return _LimitedResponse(services.downloads, services.blobs, self.principal.client_id, key, digest, headers)

    def _unchanged(self, headers: dict[str, str]) -> Response | None:
        if not_modified(self._known, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return None


def _answer(request: Request, principal: Principal) -> Answer:
    return Answer(services_of(request), principal, request.headers.get("if-none-match"))


AnswerOf = Annotated[Answer, Depends(Authenticated(_answer))]
"""Answers the request, for routes whose answers have ETags."""


class _LimitedResponse(StreamingResponse):
    """A streamed download, which counts as open until the response is sent, or dropped without being sent."""

    def __init__(
        self, downloads: AtOnce, blobs: BlobStore, client_id: str, key: str, digest: str, headers: dict[str, str]
    ) -> None:
        downloads.start(client_id)
        self._close = weakref.finalize(self, downloads.end, client_id)
        super().__init__(blobs.chunks(key, digest), media_type=OCTETS, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def receipt_response(outcome: UploadOutcome, headers: Mapping[str, str] | None = None) -> Response:
    """Return the acknowledgement of an upload."""
    status = 201 if outcome.is_new else 200
    return Response(outcome.receipt.model_dump_json(), status, headers, "application/json")


def _immutable(digest: str) -> dict[str, str]:
    return {"ETag": f'"{digest}"', "Cache-Control": "private, immutable"}
