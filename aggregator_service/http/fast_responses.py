"""Responses that are ready in memory, sent before routing.

Most requests ask for what has not changed. Finders (`fast_polls`, `fast_answers`) recognise them, authenticate them as
the route does and return a `FastResponse`, or None where the route has to answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator_service.http.json_bytes import Headers

__all__ = ["FastResponse", "FastResponses", "Finder"]


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
        if scope["type"] == "http" and scope["method"] == "GET":
            for find in self._finders:
                found = find(scope)
                if found is not None:
                    scope["route"], scope["path_params"] = found.route, found.path_params
                    return _send(found, send)
        return self._app(scope, receive, send)


async def _send(found: FastResponse, send: Send) -> None:
    await send({"type": "http.response.start", "status": found.status, "headers": found.headers})
    await send({"type": "http.response.body", "body": found.body})
