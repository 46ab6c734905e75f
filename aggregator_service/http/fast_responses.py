"""Responses that are ready in memory, sent before routing.

Most requests ask for what has not changed. Finders (`fast_polls`, `fast_answers`) recognise them, authenticate them as
the route does and return a `FastResponse`, or None where the route has to answer. `FastResponses` sends it as ASGI
messages. `ImmediateResponses` makes the bytes of the whole response, which `short_protocol` writes as soon as it has
the headers of the request: without a task, a cycle of ASGI messages and ten middlewares, which cost as much as finding
the response and checking the signature.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator_service import request_ids
from aggregator_service.http.response_bytes import Headers, ResponseWriter
from aggregator_service.observability.metrics import Metrics
from aggregator_service.observability.request_record import RequestRecord
from aggregator_service.observability.requests import count_and_log

__all__ = ["FastResponse", "FastResponses", "Finder", "ImmediateResponses", "needs_application"]

_ASKED: Final = "hushrec.asked_finders"
"""Scope key: the finders have passed this request on already."""
_PASSED_ON: Final = frozenset(
    (
        *(b"upgrade", b"expect"),  # they concern the connection, which uvicorn manages
        *(b"x-forwarded-for", b"x-forwarded-proto"),  # uvicorn decides whether the proxy is trusted
        b"origin",  # `cross_origin` adds headers
    )
)
_KEEP_ALIVE: Final = b"keep-alive"


def needs_application(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the HTTP server or a middleware acts on one of the headers of a request.

    `Connection: keep-alive` says what is the rule in HTTP/1.1 (RFC 9112, section 9.3); most client libraries send it.
    """
    connection = headers.get(b"connection", _KEEP_ALIVE)
    return connection.lower() != _KEEP_ALIVE or not _PASSED_ON.isdisjoint(headers)


@dataclass(frozen=True)
class FastResponse:
    """A response with status 200, or 304 without a body, and the route and path parameters of its request."""

    route: APIRoute
    path_params: dict[str, str]
    headers: Headers
    body: bytes

    @property
    def status(self) -> int:
        """The status code: 304 if there is no body."""
        return 200 if self.body else 304


Finder = Callable[[Scope], FastResponse | None]
"""Returns the response to a GET request, None where the route has to answer. It does not block and raises nothing."""


class FastResponses:
    """ASGI middleware that sends the response of the first of `finders` that has one."""

    def __init__(self, app: ASGIApp, *, finders: Sequence[Finder]) -> None:
        self._app, self._finders = app, finders

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request, or pass it on."""
        if scope["type"] != "http" or scope["method"] != "GET" or _ASKED in scope:
            return self._app(scope, receive, send)
        found = _find(self._finders, scope)
        if found is None:
            return self._app(scope, receive, send)
        scope["route"], scope["path_params"] = found.route, found.path_params
        return _send(found, send)


class ImmediateResponses:
    """Makes whole HTTP/1.1 responses of what `finders` return, and counts and logs them as `RequestRecorder` does.

    app: the application, whose state the finders use.
    """

    def __init__(self, app: Any, finders: Sequence[Finder], metrics: Metrics, writer: ResponseWriter) -> None:
        self._app, self._finders, self._metrics, self._writer = app, finders, metrics, writer

    def response(self, scope: Scope, server_headers: Headers) -> bytes | None:
        """Return the bytes of the response to a GET request of HTTP/1.1 on a connection that stays open.

        server_headers: those that the HTTP server adds. Returns None if the application has to answer. It then gets
        the same `scope`, and asks the finders only if this did not.
        """
        headers = dict(scope["headers"])
        if needs_application(headers):
            return None
        started = time.perf_counter()
        scope["app"] = self._app
        found = _find(self._finders, scope)
        if found is None:
            scope[_ASKED] = True
            return None
        request_id = request_ids.choose(headers.get(request_ids.HEADER))
        record = RequestRecord("GET", status=found.status, sent=len(found.body), waited=bool(scope["query_string"]))
        scope["route"], scope["path_params"] = found.route, found.path_params
        record.complete(scope, time.perf_counter() - started)
        token = request_ids.current.set(request_id)
        count_and_log(self._metrics, record)
        request_ids.current.reset(token)
        return self._writer.response(found.status, found.headers, found.body, request_id, server_headers, close=False)


async def _send(found: FastResponse, send: Send) -> None:
    await send({"type": "http.response.start", "status": found.status, "headers": found.headers})
    await send({"type": "http.response.body", "body": found.body})


def _find(finders: Sequence[Finder], scope: Scope) -> FastResponse | None:
    for find in finders:
        found = find(scope)
        if found is not None:
            return found
    return None
