"""Checks before the routes: headers, and length, time, digest and media type of JSON bodies.

`BodyGuard` is an ASGI middleware because FastAPI reads a JSON body, whatever its length and pace, before it calls the
route. h11 limits only headers that arrive in pieces, and accepts forms of a request that no client of ours sends.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, MutableMapping
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.access.request_signatures import DIGEST_READ
from aggregator_service.http.digests import digest_in
from aggregator_service.problems import PROBLEM_MEDIA_TYPE, Problem, document

__all__ = ["BodyGuard", "carries_raw_body"]

_MOST_FIELDS: Final = 100
_HEAD_BYTES: Final = 16 * 1024
_DRAIN_BYTES: Final = 64 * 1024 * 1024
_DRAIN_SECONDS: Final = 5.0
_DRAIN_PAUSE: Final = 1.0
_RAW_COLLECTIONS: Final = ("contributions", "keyring", "keys", "snapshots")
_DETAILS: Final = {
    "body-too-long": "the JSON body is too long",
    "upload-timeout": "the body did not arrive in time",
    "bad-request": "the connection closed before the end of the body",
    "unsupported-media-type": "the body of this request must be JSON: send Content-Type: application/json",
    "bad-digest": "the SHA-256 of the body does not match the header Content-Digest",
}
_FORMS: Final = "/dashboard/"
_STAGES: Final = "stages"
_RAW_RESOURCES: Final = ("public-key", "certificate", "revocations")


def carries_raw_body(scope: Scope) -> bool:
    """Return whether the route itself reads this body.

    These are vectors, envelopes, keys, snapshots, stage messages, membership certificates and revocation lists.
    """
    if scope["method"] not in ("PUT", "PATCH"):
        return False
    parts = scope["path"].rstrip("/").split("/")
    return len(parts) >= 3 and (parts[-2] in _RAW_COLLECTIONS or parts[-3] == _STAGES or parts[-1] in _RAW_RESOURCES)


class BodyGuard:
    """ASGI middleware that limits headers and JSON bodies and reads, or cuts off, the rest of a body after a refusal.

    A request whose headers are refused is answered at once, and its connection is closed.

    json_limit: bytes of a JSON body; longer ones get 413. idle_seconds: time for a JSON body; then 408.
    """

    def __init__(self, app: ASGIApp, *, json_limit: int, idle_seconds: float) -> None:
        self._app, self._limit, self._idle = app, json_limit, idle_seconds

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one request."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        refused = _refused_head(scope)
        if refused is not None:
            return _send_problem(scope, "bad-request", refused, send, close=True)
        body = _Body(scope, receive)
        scope[DIGEST_READ] = None if body.digest is None else body.digest.decode("latin-1").strip(" \t")
        if body.declared and not carries_raw_body(scope):
            return self._with_json(body, scope, send)
        return self._app(scope, body.receive, body.sender(send))

    async def _with_json(self, body: _Body, scope: Scope, send: Send) -> None:
        refusal = await self._read_json(body, scope["path"].removeprefix(scope.get("root_path", "")))
        if refusal is not None:
            await _send_problem(scope, refusal, _DETAILS[refusal], body.sender(send))
            return
        await self._app(scope, body.receive, body.sender(send))

    async def _read_json(self, body: _Body, path: str) -> str | None:
        """Read the whole body for the route.

        Returns a problem slug if it is too long, slow, cut off, altered or not JSON; the dashboard's forms need not be.
        """
        if body.declared is not None and body.declared > self._limit:
            return "body-too-long"
        read = bytearray()
        try:
            async with asyncio.timeout(self._idle):
                while not body.finished:
                    message = await body.receive()
                    if message["type"] != "http.request":
                        return "bad-request"
                    read += message.get("body", b"")
                    if len(read) > self._limit:
                        return "body-too-long"
        except TimeoutError:
            return "upload-timeout"
        if body.digest is not None and not _is_digest_of(body.digest, bytes(read)):
            return "bad-digest"
        if read and not (body.is_json or path.startswith(_FORMS)):
            return "unsupported-media-type"
        body.replay(bytes(read))
        return None


def _refused_head(scope: Scope) -> str | None:
    """Return why the line or the headers of a request are refused, None if they are not."""
    headers = scope["headers"]
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if scope["method"] == "CONNECT" or not path.startswith("/"):
        return "the target of a request is a path: this server is no proxy"
    if len(headers) > _MOST_FIELDS:
        return f"the request has more than {_MOST_FIELDS} header fields"
    fields = sum(len(name) + len(value) for name, value in headers)
    if len(scope["path"]) + len(scope["query_string"]) + fields > _HEAD_BYTES:
        return f"the request line and the headers are longer than {_HEAD_BYTES} bytes"
    if any(name == b"transfer-encoding" for name, _ in headers):
        return "send the body with Content-Length: Transfer-Encoding is not accepted"
    return None


def _is_digest_of(header: bytes, body: bytes) -> bool:
    try:
        announced = digest_in(header.decode("latin-1"), "Content-Digest")
    except Problem:
        return False
    return hmac.compare_digest(hashlib.sha256(body).hexdigest(), announced)


class _Body:
    """One request's body: what its headers declare, and whether it has been received to the end."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        self.declared = int(length) if length.isdigit() else None
        self.digest = headers.get(b"content-digest")
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self.is_json = media_type == b"application/json" or (
            media_type.startswith(b"application/") and media_type.endswith(b"+json")
        )
        self.finished = not self.declared
        self._receive = receive
        self._replayed: Message | None = None

    def replay(self, body: bytes) -> None:
        self._replayed = {"type": "http.request", "body": body, "more_body": False}

    async def receive(self) -> Message:
        if self._replayed is not None:
            message, self._replayed = self._replayed, None
            return message
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
                    message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
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


async def _send_problem(scope: Scope, slug: str, detail: str, send: Send, *, close: bool = False) -> None:
    problem = document(slug, detail)
    scope["hushrec.problem"] = slug
    body = problem.model_dump_json(exclude_none=True).encode()
    headers = [(b"content-type", PROBLEM_MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
