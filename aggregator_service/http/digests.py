"""Lengths and digests that a request announces (RFC 9110, RFC 9530)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from starlette.requests import Request

from aggregator_service.problems import Problem

__all__ = [
    "content_digest",
    "content_length",
    "digest_header",
    "digest_in",
    "repr_digest",
]

_DIGITS: Final = re.compile(r"^[0-9]{1,18}$")
_SHA256: Final = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/]{43}=):\s*(?=$|,|;)")


def content_length(request: Request, *, exact: int | None = None, most: int | None = None) -> int:
    """The announced length: 411 when there is none, 413 and 400 when it is not what the resource takes."""
    text = request.headers.get("content-length", "")
    if not _DIGITS.match(text) or "transfer-encoding" in request.headers:
        raise Problem("length-required", "announce the body's length in Content-Length; chunked bodies are not taken")
    length = int(text)
    limit = exact if exact is not None else most
    if limit is not None and length > limit:
        raise Problem("body-too-long", f"the body may have {limit} bytes", expected_bytes=limit)
    if exact is not None and length < exact:
        raise Problem("body-too-short", f"the body must have exactly {exact} bytes", expected_bytes=exact)
    if length == 0:
        raise Problem("body-too-short", "the body is empty")
    return length


def content_digest(request: Request) -> str:
    """The SHA-256 (hex) of the Content-Digest header (RFC 9530): 400 bad-digest when there is none."""
    return digest_in(request.headers.get("Content-Digest", ""), "Content-Digest")


def repr_digest(request: Request) -> str:
    """The SHA-256 (hex) of the whole representation, from Repr-Digest (RFC 9530)."""
    return digest_in(request.headers.get("Repr-Digest", ""), "Repr-Digest")


def digest_in(value: str, name: str) -> str:
    """The SHA-256 (hex) in the value of the field `name`: 400 bad-digest when there is none."""
    found = _SHA256.search(value)
    if found is None:
        raise Problem("bad-digest", f"a header of the form {name}: sha-256=:<base64>: is needed")
    try:
        return base64.b64decode(found.group(1), validate=True).hex()
    except binascii.Error:
        raise Problem("bad-digest", f"the header {name} is not well-formed") from None


def digest_header(digest: str) -> str:
    """A SHA-256 (hex) as the value of Content-Digest."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"
