"""Security headers of every response: content type options, referrer policy, content security policy, caching."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["SecurityHeaders"]

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
_NAMES: Final = frozenset((_HSTS, *(name for name, _ in _API_HEADERS)))


class SecurityHeaders:
    """ASGI middleware that adds the security headers that a response does not set itself.

    hsts_seconds: `max-age` of Strict-Transport-Security; 0 leaves that header out.
    """

    def __init__(self, app: ASGIApp, *, hsts_seconds: int) -> None:
        self._app = app
        hsts = ((_HSTS, b"max-age=%d" % hsts_seconds),) if hsts_seconds else ()
        self._api, self._dashboard = ((*headers, *hsts) for headers in (_API_HEADERS, _DASHBOARD_HEADERS))

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one request, and add the headers to the start of its response."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        wanted = self._headers_for(scope["path"].removeprefix(scope.get("root_path", "")))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = [*message.get("headers", ())]
                present = {name for name, _ in found}
                if present.isdisjoint(_NAMES):
                    message["headers"] = [*found, *wanted]
                else:
                    message["headers"] = [*found, *(one for one in wanted if one[0] not in present)]
            await send(message)

        return self._app(scope, receive, send_with_headers)

    def _headers_for(self, path: str) -> _Headers:
        return self._dashboard if path in _PAGES or path.startswith(f"{_DASHBOARD}/") else self._api
