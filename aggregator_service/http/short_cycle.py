"""uvicorn's cycle of one request and its response, for a short request that is answered as a whole.

The body is collected first. It has a second to arrive: then the application answers, which has its own limits for slow
bodies. So it does when the connection ends before.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from aggregator_service.http.direct_routes import DirectCall
from aggregator_service.http.indexed_headers import IndexedHeaders
from aggregator_service.observability.request_record import STARTED

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BODY_SECONDS", "ShortCycle", "whole_body"]

BODY_SECONDS: Final = 1.0
"""Time for the body to arrive."""
_BODY: Final = "hushrec.whole_body"
"""Scope key: the whole body of the request."""


class ShortCycle(RequestResponseCycle):
    """A request that `call` answers.

    begun: whether its answer is being made, here or by the application.
    """

    def __init__(self, http: HttpToolsProtocol, call: DirectCall) -> None:
        super().__init__(
            scope=http.scope,
            transport=http.transport,
            flow=http.flow,
            logger=http.logger,
            access_logger=http.access_logger,
            access_log=http.access_log,
            default_headers=http.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=http.on_response_complete,
        )
        self.call, self.begun = call, False
        asgi: Any = self  # uvicorn has types of its own for the same scopes and messages
        self.request = _ShortRequest(asgi.scope, asgi.receive, asgi.send)
        self.request.scope[STARTED] = time.perf_counter()

    def take_body(self) -> None:
        """Put the whole body into the scope. It stays readable as an ASGI message, too."""
        self.request.scope[_BODY] = bytes(self.body)

    def return_body(self) -> None:
        """Make the body an ASGI message again, for the application, whether or not it was read."""
        self.body = bytearray(self.request.scope.pop(_BODY))
        self.message_event.set()

    def finish(self, response: bytes) -> None:
        """Send the response, unless the connection is closed. The request is not used any more."""
        del self.request  # it refers to this cycle: the body would stay in memory until the next collection
        if self.disconnected:
            return
        self.response_started = self.response_complete = True
        self.message_event.set()
        self.transport.write(response)
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class _ShortRequest(Request):
    """A request with indexed headers."""

    headers: Headers = Headers()
    """The headers of the request: an attribute, because a route reads it a dozen times."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self.headers = IndexedHeaders(scope["headers"])


def whole_body(request: Request) -> bytes | None:
    """Return the body of a short request; None for other requests, whose body is received."""
    body: bytes | None = request.scope.get(_BODY)
    return body
