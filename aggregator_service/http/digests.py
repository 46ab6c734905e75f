"""The length and the digests that a request announces for its body (RFC 9110, RFC 9530)."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request

from aggregator_service.observability.request_record import DIGEST
from aggregator_service.problems import Problem
from protocols.crypto.digest_fields import format_digest, parse_digest
from protocols.errors import CodecError

__all__ = [
    "check_length",
    "content_digest",
    "content_length",
    "digest_header",
    "digest_in",
    "repr_digest",
]

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
    digest = request.scope[DIGEST] = digest_in(request.headers.get("content-digest", ""), "Content-Digest")
    return digest


def repr_digest(request: Request) -> str:
    """Return the SHA-256 (hex) of the whole upload from Repr-Digest; raise `Problem` bad-digest without a valid one."""
    return digest_in(request.headers.get("Repr-Digest", ""), "Repr-Digest")


def digest_in(value: str, name: str) -> str:
    """Return the SHA-256 (hex) in the value of the header `name`; raise `Problem` bad-digest without a valid one."""
    try:
        digest = parse_digest(value)
    except CodecError as error:
        raise Problem("bad-digest", f"the header {name} is malformed: {error}") from None
    if digest is None:
        raise Problem("bad-digest", f"send the header {name}: sha-256=:<base64 of the SHA-256>:")
    return digest.hex()


def digest_header(digest: str) -> str:
    """Return the value of Content-Digest for a SHA-256 (hex)."""
    return format_digest(bytes.fromhex(digest))
