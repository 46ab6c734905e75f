"""Conditional requests (RFC 9110, section 13), and JSON answers that can be asked for again cheaply."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Response

__all__ = ["JSON_CACHING", "TAGGED", "TaggedJson", "not_modified"]

JSON_CACHING: Final = "private, no-cache"
"""Cache-Control of a JSON answer with an ETag: a client may keep it, and asks before each use whether it changed."""
TAGGED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": {
            "ETag": {"description": "Changes with the answer.", "schema": {"type": "string"}},
            "Cache-Control": {"description": f"`{JSON_CACHING}`", "schema": {"type": "string"}},
        }
    },
    304: {"description": "The answer has not changed since the ETag in If-None-Match."},
}
"""The entries of the `responses=` of a route that answers with `TaggedJson`."""


@dataclass(frozen=True)
class TaggedJson:
    """The bytes of a JSON answer, and their ETag."""

    body: bytes
    etag: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "etag", f'"{hashlib.sha256(self.body).hexdigest()[:32]}"')

    def response(self, if_none_match: str | None) -> Response:
        """Return the answer, 304 if `if_none_match` names its ETag."""
        headers = {"ETag": self.etag, "Cache-Control": JSON_CACHING}
        if not_modified(if_none_match, self.etag):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type="application/json", headers=headers)


def not_modified(if_none_match: str | None, etag: str) -> bool:
    """Return whether the value of If-None-Match names `etag`, by weak comparison (RFC 9110, 8.8.3.2), or is `*`."""
    if if_none_match is None:
        return False
    if if_none_match == etag:  # the usual case
        return True
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known
