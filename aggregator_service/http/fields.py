"""What header fields and queries say: lengths and digests of bodies, media types, ETags, unknown parameters."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from aggregator_service.observability.requests import DIGEST
from aggregator_service.problems import Problem
from protocols.crypto.http_signature import format_digest, parse_digest
from protocols.errors import CodecError
from protocols.messages.stages import OCTETS

_DIGITS: Final = re.compile(r"^[0-9]{1,18}$")


def content_length(request: Request, *, exact: int | None = None, most: int | None = None) -> int:
    """Return the value of Content-Length, in bytes.

    exact, most: the length that the body must have, or may have at most. Raises `Problem`: length-required without a
    Content-Length; body-too-long; body-too-short, also for an empty body.
    """
    text = request.headers.get("content-length", "")
    if not _DIGITS.match(text):
        raise Problem("length-required", "send the header Content-Length")
    length = int(text)
    if exact is not None:
        return check_length(length, exact)
    if most is not None:
        _refuse_longer(length, most)
    if length == 0:
        raise Problem("body-too-short", "the body is empty")
    return length


def check_length(length: int, exact: int) -> int:
    """Return `length`; raise `Problem` body-too-long or body-too-short unless it is the length `exact`, in bytes."""
    _refuse_longer(length, exact)
    if length < exact:
        raise Problem("body-too-short", f"the body must have exactly {exact} bytes", expected_bytes=exact)
    return length


def _refuse_longer(length: int, most: int) -> None:
    if length > most:
        raise Problem("body-too-long", f"the body may have at most {most} bytes", expected_bytes=most)


def content_digest(request: Request) -> str:
    """Return the SHA-256 (hex) of the body from Content-Digest; raise `Problem` bad-digest without a valid one.

    The record of the request gets it, too.
    """
    digest = request.scope[DIGEST] = digest_in(request, "Content-Digest")
    return digest


def digest_in(request: Request, name: str) -> str:
    """Return the SHA-256 (hex) in the header `name`; raise `Problem` bad-digest without a valid one."""
    try:
        digest = parse_digest(request.headers.get(name, ""))
    except CodecError as error:
        raise Problem("bad-digest", f"the header {name} is malformed: {error}") from None
    if digest is None:
        raise Problem("bad-digest", f"send the header {name}: sha-256=:<base64 of the SHA-256>:")
    return digest.hex()


def digest_header(digest: str) -> str:
    """Return the value of Content-Digest for a SHA-256 (hex)."""
    return format_digest(bytes.fromhex(digest))


def check_media_type(request: Request, own: str) -> None:
    """Raise `Problem` unsupported-media-type unless the body is stated as `own` or as plain bytes, or not at all."""
    stated = request.headers.get("content-type", "")
    if stated not in ("", OCTETS, own) and stated.split(";")[0].strip().lower() not in ("", OCTETS, own):
        raise Problem("unsupported-media-type", f"this body has the media type {own}, or {OCTETS}")


JSON_CACHING: Final = "private, no-cache"
"""Cache-Control of a JSON answer with an ETag: a client may keep it, and asks before each use whether it changed."""


def not_modified(if_none_match: str | None, etag: str) -> bool:
    """Return whether the value of If-None-Match names `etag`, by weak comparison (RFC 9110, 8.8.3.2), or is `*`."""
    if if_none_match is None:
        return False
    if if_none_match == etag:  # the usual case
        return True
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


LONGEST_WAIT: Final = 30
"""Most seconds of a long poll."""


def check_query(request: Request) -> None:
    """Raise `RequestValidationError` (422) if the query has a parameter that the route does not know, or one twice."""
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    known = {one.alias for one in route.dependant.query_params} if isinstance(route, APIRoute) else set()
    given = [name for name, _ in request.query_params.multi_items()]
    wrong = [name for place, name in enumerate(given) if name not in known or name in given[:place]]
    if wrong:
        text = "the query has an unknown parameter, or one twice"
        raise RequestValidationError(
            [{"type": "extra_forbidden", "loc": ("query", name), "msg": text} for name in wrong]
        )


async def _checked_query(request: Request) -> None:  # FastAPI would call a plain function in a thread
    check_query(request)


QueryChecked: Final = Depends(_checked_query)
"""Dependency of routes that anybody may call. Where a token is needed, `authenticate` checks the query, after it."""
