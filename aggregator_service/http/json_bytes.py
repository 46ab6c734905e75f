"""Responses of JSON that is encoded already."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

__all__ = ["Headers", "JsonBytes", "json_headers"]

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""


class JsonBytes(Response):
    """A response of JSON that is encoded already: its headers are known, so nothing has to be derived from them."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.status_code, self.body, self.background = status, body, None
        self.raw_headers = list(json_headers(body))


def json_headers(body: bytes) -> Headers:
    """Return the headers of a JSON body; none if it is empty."""
    return ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))) if body else ()
