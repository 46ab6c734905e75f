"""How exceptions of the routes become problem documents, and what the log says of them."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from aggregator_service.logs import fields
from aggregator_service.problems import PROBLEM_MEDIA_TYPE, Problem, document
from aggregator_service.storage.blobs import BlobDamagedError, BlobMissingError, BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE
from protocols.crypto.http_signature import SIGNED_FIELDS
from protocols.errors import CodecError, ContributionError, ParameterError
from protocols.messages.base import PROBLEM_TYPES
from protocols.messages.stages import PARTIAL_UPLOAD
from protocols.parameter_text import fault_text

_LOG = logging.getLogger(__name__)
_PLAIN_NAME: Final = re.compile(r"^[a-z][a-z0-9_]{0,40}$")


def problem_response(
    request: Request, slug: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> JSONResponse:
    """Return a problem document as a response. The record of the request gets its slug. members: see `document`."""
    body = document(slug, detail, **members)
    request.scope["hushrec.problem"] = slug
    content = body.model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, body.status, headers=dict(headers or {}), media_type=PROBLEM_MEDIA_TYPE)


def _problem(request: Request, error: Problem) -> JSONResponse:
    headers = dict(error.headers)
    if PROBLEM_TYPES[error.slug][0] == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="hushrec"'
        headers["Accept-Signature"] = _accepted_signature(request)
    return problem_response(request, error.slug, error.detail, headers, **error.extensions)


def _accepted_signature(request: Request) -> str:
    """Return what a client's signature of this request covers (RFC 9421, section 5.1)."""
    has_body = request.headers.get("content-length", "0") != "0"
    fields = [name for name in SIGNED_FIELDS if name in request.headers or (has_body and name == "content-digest")]
    parts = ["@method", "@authority", "@path", *(["@query"] if request.scope["query_string"] else []), *fields]
    covered = " ".join(f'"{part}"' for part in parts)
    return f'hushrec=({covered});created;keyid;tag="hushrec"'


def _field(location: Sequence[Any]) -> str:
    """Return the path of a field with dots; parts that are not plain names or indices become `(unnamed)`."""
    parts = [str(part) if isinstance(part, int) or _PLAIN_NAME.match(str(part)) else "(unnamed)" for part in location]
    return ".".join(parts)


def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    found = error.errors()
    if any(item["type"] in ("json_invalid", "unicode_error") for item in found):
        return problem_response(request, "bad-request", "the body is not well-formed JSON")
    # the texts name the rule; those of our own validators contain no input either
    listed = [{"field": _field(item["loc"]), "rule": item["type"], "message": fault_text(item)} for item in found[:20]]
    text = "some fields are missing, unknown or out of range"
    return problem_response(request, "invalid-parameters", text, errors=listed)


def _http(request: Request, error: HTTPException) -> JSONResponse:
    if error.status_code == 405:
        methods = _methods(request)
        patches = {"Accept-Patch": PARTIAL_UPLOAD} if "PATCH" in methods else {}
        return problem_response(request, "method-not-allowed", "see the header Allow", {"Allow": methods, **patches})
    slug = "not-found" if error.status_code == 404 else "bad-request"  # Starlette raises no other statuses here
    return problem_response(request, slug, PROBLEM_TYPES[slug][1] + ".", error.headers)


def _methods(request: Request) -> str:
    """Return every method of the path; the router's own answer names those of one route only."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


class _Rule(NamedTuple):
    """How an exception is answered."""

    slug: str
    detail: str | None = None
    """None for the exception's text."""
    log: str = ""
    """What happened, "" to log nothing."""
    named: Callable[[Exception], str] = str
    """What of the exception is logged: its text, or, where that holds values from a statement, the driver's type."""
    level: int = logging.ERROR
    retry_after: str | None = None


def _cause(error: Exception) -> str:
    return type(getattr(error, "orig", None) or error).__name__


def _code(error: Exception) -> str:
    return errno.errorcode[cast(OSError, error).errno or 0]


_MISSING: Final = "stored bytes are missing; the error is in the server's log"
_DAMAGED: Final = "stored bytes are damaged; the error is in the server's log"
_NO_BLOBS: Final = "the blob store is unavailable; try again"
_NO_DATABASE: Final = "the database does not answer; try again"
_NO_DISK: Final = "the server cannot write to its disk; try again"
_NOT_STORABLE: Final = "a value contains a character or a number that the database cannot store"
_NOT_STORED: Final = "a value in the request cannot be stored in the database: %s"
_DATABASE: Final = _Rule("unavailable", _NO_DATABASE, "database unavailable: %s", _cause, retry_after="2")
_DISK: Final = _Rule("unavailable", _NO_DISK, "local disk unavailable: %s", _code, retry_after="5")
_RULES: Final[dict[type[Exception], _Rule]] = {
    ParameterError: _Rule("invalid-parameters"),
    ContributionError: _Rule("bad-contribution"),
    CodecError: _Rule("bad-request"),
    BlobMissingError: _Rule("internal-error", _MISSING, "stored blob missing: %s"),
    BlobDamagedError: _Rule("internal-error", _DAMAGED, "stored blob damaged: %s"),
    BlobsUnavailableError: _Rule("unavailable", _NO_BLOBS, "blob store unavailable: %s", retry_after="5"),
    DataError: _Rule("bad-request", _NOT_STORABLE, _NOT_STORED, _cause, logging.WARNING),
    **dict.fromkeys(DATABASE_GONE, _DATABASE),
}
"""The answers to exceptions that routes are known to raise."""


def _by(rule: _Rule) -> Callable[[Request, Exception], Response]:
    def handle(request: Request, error: Exception) -> JSONResponse:
        if rule.log:
            _LOG.log(rule.level, rule.log, rule.named(error), extra=fields(route=_route_of(request)))
        headers = {} if rule.retry_after is None else {"Retry-After": rule.retry_after}
        return problem_response(request, rule.slug, rule.detail or str(error), headers)

    return handle


def _system(request: Request, error: OSError) -> Response:
    known = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
    return _by(_DISK)(request, error) if known else crashed(request, error)


def crashed(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an unexpected exception, and log its traceback."""
    _LOG.error("unhandled %s", type(error).__name__, exc_info=error, extra=fields(route=_route_of(request)))
    text = "the request failed inside the server; the error is in the server's log"
    return problem_response(request, "internal-error", text)


def _route_of(request: Request) -> str:
    return getattr(request.scope.get("route"), "path", "")


def install_problem_handlers(app: FastAPI) -> None:
    """Register a handler for each exception that routes are known to raise; `crashed` answers all others."""
    app.exception_handler(Problem)(_problem)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(OSError)(_system)
    for kind, rule in _RULES.items():
        app.exception_handler(kind)(_by(rule))
