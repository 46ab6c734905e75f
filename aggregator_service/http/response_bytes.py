"""The bytes of whole responses in HTTP/1.1, for what `short_protocol` answers without ASGI messages.

Their headers are those of the application's responses: the route's own, security headers (`security_headers`), those of
the HTTP server, and the request id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from aggregator_service import request_ids
from aggregator_service.http.security_headers import missing_security_headers

__all__ = ["Headers", "JsonBytes", "ResponseWriter", "json_headers"]

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""
_STATUS_LINES: Final = {one.value: b"HTTP/1.1 %d %s\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus}
_CLOSE: Final = b"connection: close\r\n"
_OWN_LINES: Final = 3
"""Line ends of a response's head besides its headers: of the status line, the request id and the empty line."""


class JsonBytes(Response):
    """A response of JSON that is encoded already: its headers are known, so nothing has to be derived from them."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.status_code, self.body, self.background = status, body, None
        self.raw_headers = list(json_headers(body))


def json_headers(body: bytes) -> Headers:
    """Return the headers of a JSON body; none if it is empty."""
    return ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))) if body else ()


class ResponseWriter:
    """Makes the bytes of responses. hsts_seconds: see `SecurityHeaders`."""

    def __init__(self, hsts_seconds: int) -> None:
        self.hsts_seconds = hsts_seconds

    def response(
        self, status: int, headers: Headers, body: bytes, request_id: str, server_headers: Headers, *, close: bool
    ) -> bytes:
        """Return a whole response.

        headers: of the route, with Content-Length if there is a body. server_headers: those that the HTTP server adds.
        close: whether the connection will be closed. Raises `ValueError` if a header holds a line break.
        """
        added, count = _lines(missing_security_headers(headers, self.hsts_seconds))
        lines = [name + b": " + value + b"\r\n" for name, value in (*server_headers, *headers)]
        own = request_ids.HEADER + b": " + request_id.encode() + b"\r\n"
        head = b"".join((_STATUS_LINES[status], *lines, added, own, _CLOSE if close else b"", b"\r\n"))
        expected = len(lines) + count + _OWN_LINES + close
        if head.count(b"\n") != expected or head.count(b"\r") != expected:
            raise ValueError("a response header holds a line break")
        return head + body


@lru_cache(maxsize=64)  # the security headers that a response does not set itself: a few combinations
def _lines(headers: Headers) -> tuple[bytes, int]:
    """Return the lines of headers, and their number."""
    return b"".join(b"%b: %b\r\n" % header for header in headers), len(headers)
