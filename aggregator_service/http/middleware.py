"""ASGI middlewares around the routes: what every response has, and limits of heads and bodies of requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.http.authentication import DIGEST_READ, METHOD_SENT
from aggregator_service.polling.notifier import NOT_HELD
from aggregator_service.problem_handlers import problem_response

_API: Final = "/v1/"
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_OF_BODIES: Final = ("Content-Digest", "Repr-Digest", "Upload-Complete", "Upload-Length", "Upload-Offset")
_SIGNED: Final = ("Authorization", "Signature", "Signature-Input", "X-Request-ID")
_SENT: Final = (*_OF_BODIES, *_SIGNED, "Aggregate-Chain", "Content-Type", "If-None-Match", "Range", "Round-Binding")
_OF_UPLOADS: Final = ("Accept-Patch", "Content-Range", "Upload-Limit", "X-Request-ID")
_READ: Final = (*_OF_BODIES, *_OF_UPLOADS, "Accept-Signature", "Allow", "ETag", "Location", "Retry-After")
"""Headers that pages of other origins may send and read."""
_PREFLIGHT_SECONDS: Final = 600

_Headers = tuple[tuple[bytes, bytes], ...]

_DASHBOARD: Final = "/dashboard"
_PAGES: Final = frozenset((_DASHBOARD, "/"))
"""Paths of HTML pages, besides those below the dashboard."""

_API_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# The dashboard uses its own style sheet, script and forms, and loads nothing from other hosts.
_DASHBOARD_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def _headers(policy: bytes, referrer: bytes = b"no-referrer") -> _Headers:
    return (
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", referrer),
        (b"content-security-policy", policy),
        # Responses hold tokens, invitations and ids. A route whose response may be cached sets its own Cache-Control.
        (b"cache-control", b"no-store"),
    )


_API_HEADERS: Final = _headers(_API_POLICY)
# With "no-referrer" browsers send "Origin: null" with forms, and the dashboard compares the origin.
_DASHBOARD_HEADERS: Final = _headers(_DASHBOARD_POLICY, b"same-origin")
_HSTS: Final = b"strict-transport-security"
_OTHERWISE: Final = re.compile(r"/live$|/contributions/[^/]+$")
"""Paths that HEAD does not share with GET: endless streams of the dashboard, and the state of a resumable upload."""


class Responses:
    """ASGI middleware for what all responses have: security headers, CORS, and no body after HEAD, routed as GET.

    origins: `https://host[:port]` of pages that may call the API, without cookies; the dashboard is left out.
    hsts_seconds: `max-age` of Strict-Transport-Security; 0 leaves that header out. A response keeps the security
    headers that it sets itself.
    """

    def __init__(self, app: ASGIApp, *, origins: Sequence[str], hsts_seconds: int) -> None:
        hsts = ((_HSTS, b"max-age=%d" % hsts_seconds),) if hsts_seconds else ()
        self._api_headers, self._dashboard_headers = ((*one, *hsts) for one in (_API_HEADERS, _DASHBOARD_HEADERS))
        self._app = self._api = app
        if origins:
            self._api = CORSMiddleware(
                app,
                allow_origins=origins,
                allow_methods=_METHODS,
                allow_headers=_SENT,
                expose_headers=sorted(_READ),
                max_age=_PREFLIGHT_SECONDS,
            )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one request; preflight requests of the API are answered here."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_page = path in _PAGES or path.startswith(f"{_DASHBOARD}/")
        headers = self._dashboard_headers if is_page else self._api_headers
        without_body = scope["method"] == "HEAD" and not _OTHERWISE.search(path)
        if without_body:
            scope = {**scope, "method": "GET", METHOD_SENT: "HEAD"}

        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = [*message.get("headers", ())]
                present = {name for name, _ in found}
                message["headers"] = [*found, *(one for one in headers if one[0] not in present)]
            elif without_body and message["type"] == "http.response.body":
                if message.get("more_body", False):
                    return
                message = {**message, "body": b""}
            await send(message)

        return (self._api if path.startswith(_API) else self._app)(scope, receive, respond)


_MOST_FIELDS: Final = 100
_HEAD_BYTES: Final = 16 * 1024
_DRAIN_BYTES: Final = 64 * 1024 * 1024
_DRAIN_SECONDS: Final = 5.0
_DRAIN_PAUSE: Final = 1.0
_CLOSE: Final = (b"connection", b"close")


class BodyGuard:
    """ASGI middleware that limits headers, and reads or cuts off the rest of a body after a refusal.

    A request whose headers are refused is answered at once, and its connection is closed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one request."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        fields = dict(scope["headers"])
        refused = _refused_head(scope, fields)
        if refused is not None:
            answer = problem_response(Request(scope), "bad-request", refused, {"Connection": "close"})
            return answer(scope, receive, send)
        scope["headers"] = _in_one_form(scope["headers"], fields)
        body = _Body(scope, receive)
        return self._app(scope, body.receive, body.sender(send))


def _in_one_form(
    headers: Sequence[tuple[bytes, bytes]], fields: Mapping[bytes, bytes]
) -> Sequence[tuple[bytes, bytes]]:
    """Return the fields of a request, whose meaning may be written in several forms, in the one that routes read.

    Lines of If-None-Match are one list (RFC 9110, 5.3), and a length of 00 is 0. fields: the last of each name.
    """
    if len(fields) == len(headers) and fields.get(b"content-length", b"1").strip(b"0"):
        return headers  # nothing comes twice, and there is no length of 0, as in most requests
    known = [value for name, value in headers if name == b"if-none-match"]
    padded = any(name == b"content-length" and value != b"0" and not value.strip(b"0") for name, value in headers)
    if len(known) < 2 and not padded:
        return headers
    others = [
        (name, b"0" if name == b"content-length" and not value.strip(b"0") else value)
        for name, value in headers
        if name != b"if-none-match"
    ]
    return [*others, (b"if-none-match", b", ".join(known))] if known else others


def _refused_head(scope: Scope, fields: Mapping[bytes, bytes]) -> str | None:
    """Return why the line or the headers of a request are refused, None if they are not; fields: by name."""
    headers = scope["headers"]
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if scope["method"] == "CONNECT" or not path.startswith("/"):
        return "the target of a request is a path: this server is no proxy"
    if len(headers) > _MOST_FIELDS:
        return f"the request has more than {_MOST_FIELDS} header fields"
    length = sum([len(name) + len(value) for name, value in headers])
    if len(scope["path"]) + len(scope["query_string"]) + length > _HEAD_BYTES:
        return f"the request line and the headers are longer than {_HEAD_BYTES} bytes"
    if b"transfer-encoding" in fields:
        return "send the body with Content-Length: Transfer-Encoding is not accepted"
    return None


class _Body:
    """One request's body: what its headers declare, and whether it has been received to the end."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        self.declared = int(length) if length.isdigit() else None
        digest = headers.get(b"content-digest")
        scope[DIGEST_READ] = None if digest is None else digest.decode("latin-1").strip(" \t")
        self.finished = not self.declared
        self._scope, self._receive = scope, receive

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.finished = True
        return message

    def sender(self, send: Send) -> Send:
        async def wrapped(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and not self.finished:
                if message["status"] != 408:
                    await self._drain()
                if not self.finished:
                    message = {**message, "headers": [*message.get("headers", []), _CLOSE]}
            if message["type"] == "http.response.start" and NOT_HELD in self._scope:
                # its connection is closed, since other requests need it
                again = (b"retry-after", b"%d" % self._scope[NOT_HELD])
                message = {**message, "headers": [*message.get("headers", []), again, _CLOSE]}
            await send(message)

        return wrapped

    async def _drain(self) -> None:
        """Read the rest of the body, within limits: closing a connection with unread bytes discards the response."""
        if (self.declared or 0) > _DRAIN_BYTES:
            return
        left = _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self.finished and left > 0:
                    async with asyncio.timeout(_DRAIN_PAUSE):
                        message = await self.receive()
                    left -= len(message.get("body", b""))
        except TimeoutError:
            return
