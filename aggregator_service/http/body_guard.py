"""Limits before the routes: headers, and what is left of a body after its request was refused.

h11 limits only headers that arrive in pieces, and accepts forms of a request that no client of ours sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.access.request_signatures import DIGEST_READ
from aggregator_service.problems import PROBLEM_MEDIA_TYPE, document

__all__ = ["BodyGuard"]

_MOST_FIELDS: Final = 100
_HEAD_BYTES: Final = 16 * 1024
_DRAIN_BYTES: Final = 64 * 1024 * 1024
_DRAIN_SECONDS: Final = 5.0
_DRAIN_PAUSE: Final = 1.0


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
        refused = _refused_head(scope)
        if refused is not None:
            return _send_problem(scope, "bad-request", refused, send, close=True)
        body = _Body(scope, receive)
        return self._app(scope, body.receive, body.sender(send))


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


class _Body:
    """One request's body: what its headers declare, and whether it has been received to the end."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        self.declared = int(length) if length.isdigit() else None
        digest = headers.get(b"content-digest")
        scope[DIGEST_READ] = None if digest is None else digest.decode("latin-1").strip(" \t")
        self.finished = not self.declared
        self._receive = receive

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
