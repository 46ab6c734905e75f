"""Headers on every answer that a browser might show: it must neither guess, frame, run nor keep anything."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["UNSEEN", "SecureHeaders", "strict_transport"]

_NOTHING: Final = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# FastAPI's page of the API loads its viewer from a content network and starts it inline.
_VIEWER: Final = (
    b"default-src 'none'; connect-src 'self'; img-src 'self' data: https://fastapi.tiangolo.com; "
    b"script-src 'unsafe-inline' https://cdn.jsdelivr.net; worker-src blob:; "
    b"style-src 'unsafe-inline' https://cdn.jsdelivr.net https://fonts.googleapis.com; "
    b"font-src https://fonts.gstatic.com; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
UNSEEN: Final = (  # what `SecureHeaders` says for answers that are no page
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _NOTHING),
    (b"cache-control", b"no-store"),
)
# The dashboard's pages: their own style sheet, script and forms, and nothing from anywhere else.
_PAGES: Final = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_DASHBOARD: Final = "/dashboard"
_VIEWERS: Final = frozenset({"/docs", "/redoc"})


def strict_transport(hsts_seconds: int) -> list[tuple[bytes, bytes]]:
    """Strict-Transport-Security for so many seconds; nothing for 0."""
    return [(b"strict-transport-security", b"max-age=%d" % hsts_seconds)] if hsts_seconds else []


class SecureHeaders:
    """Adds what an answer does not say itself. hsts_seconds: see `strict_transport`."""

    def __init__(self, app: ASGIApp, *, hsts_seconds: int) -> None:
        self._app = app
        self._always = [(b"x-content-type-options", b"nosniff"), *strict_transport(hsts_seconds)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        pages = path == _DASHBOARD or path.startswith(f"{_DASHBOARD}/")
        policy = _PAGES if pages else _VIEWER if path in _VIEWERS else _NOTHING
        # Tokens and invitations are in answers, and ids in most: what may be kept says so itself.
        wanted = [
            *self._always,
            # A page that sends no referrer at all has no origin in its forms either.
            (b"referrer-policy", b"same-origin" if pages else b"no-referrer"),
            (b"content-security-policy", policy),
            (b"cache-control", b"no-store"),
        ]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                there = {name.lower() for name, _ in given}
                given += [(name, value) for name, value in wanted if name not in there]
                message = {**message, "headers": given}
            await send(message)

        await self._app(scope, receive, with_headers)
