"""Cross-origin requests (CORS) of clients that run in a browser, from origins that the operator lists."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["CrossOrigin"]

_API: Final = "/v1/"
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_SENT: Final = (
    "Aggregate-Chain",
    "Authorization",
    "Content-Digest",
    "Content-Type",
    "If-None-Match",
    "Range",
    "Repr-Digest",
    "Round-Binding",
    "Signature",
    "Signature-Input",
    "Upload-Complete",
    "Upload-Length",
    "Upload-Offset",
    "X-Request-ID",
)
_READ: Final = (
    "Accept-Patch",
    "Accept-Signature",
    "Allow",
    "Content-Digest",
    "Content-Range",
    "ETag",
    "Location",
    "Repr-Digest",
    "Retry-After",
    "Upload-Complete",
    "Upload-Length",
    "Upload-Limit",
    "Upload-Offset",
    "X-Request-ID",
)
_PREFLIGHT_SECONDS: Final = 600


class CrossOrigin:
    """ASGI middleware that lets pages of `origins` call the API, without cookies; the dashboard is left out.

    origins: `https://host[:port]` each. Without any, every request is passed on and no header is added.
    """

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        self._app = app
        self._api: ASGIApp = app
        if origins:
            self._api = CORSMiddleware(
                app,
                allow_origins=origins,
                allow_methods=_METHODS,
                allow_headers=_SENT,
                expose_headers=_READ,
                max_age=_PREFLIGHT_SECONDS,
            )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one request; preflight requests of the API are answered here."""
        path = str(scope.get("path", "")).removeprefix(scope.get("root_path", ""))
        return (self._api if path.startswith(_API) else self._app)(scope, receive, send)
