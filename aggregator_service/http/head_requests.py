"""Answers HEAD wherever GET is answered: the same status and headers, without the body (RFC 9110, section 9.3.2)."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.access.request_signatures import METHOD_SENT

__all__ = ["HeadRequests"]

_OTHERWISE: Final = re.compile(r"/live$|/contributions/[^/]+$")
"""Paths that HEAD does not share with GET: endless streams of the dashboard, and the state of a resumable upload."""


class HeadRequests:
    """ASGI middleware that routes HEAD as GET and leaves out the body of the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or _OTHERWISE.search(scope["path"]):
            return self._app(scope, receive, send)

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                if message.get("more_body", False):
                    return
                message = {**message, "body": b""}
            await send(message)

        return self._app({**scope, "method": "GET", METHOD_SENT: "HEAD"}, receive, without_body)
