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
from protocols.messages import ProblemDocument
from protocols.messages.base import PROBLEM_TYPES
from protocols.messages.stages import PARTIAL_UPLOAD
from protocols.parameter_text import fault_text

_LOG = logging.getLogger(__name__)
_PLAIN_NAME: Final = re.compile(r"^[a-z][a-z0-9_]{0,40}$")
_SLUG_OF_STATUS: Final = {
    400: "bad-request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-long",
    415: "unsupported-media-type",
    429: "too-many-requests",
    503: "unavailable",
}


def _answer(request: Request, body: ProblemDocument, headers: Mapping[str, str] | None = None) -> JSONResponse:
    request.scope["hushrec.problem"] = body.slug
    content = body.model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, body.status, headers=dict(headers or {}), media_type=PROBLEM_MEDIA_TYPE)


def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)  # noqa: S101 - registered for this type alone
    headers = dict(error.headers)
    if PROBLEM_TYPES[error.slug][0] == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="hushrec"'
        headers["Accept-Signature"] = _accepted_signature(request)
    return _answer(request, document(error.slug, error.detail, None, **error.extensions), headers)


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


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type alone
    found = error.errors()
    if any(item["type"] in ("json_invalid", "unicode_error") for item in found):
        return _answer(request, document("bad-request", "the body is not well-formed JSON"))
    # the texts name the rule; those of our own validators contain no input either
    listed = [{"field": _field(item["loc"]), "rule": item["type"], "message": fault_text(item)} for item in found[:20]]
    return _answer(request, document("invalid-parameters", "some fields are missing, unknown or out of range", listed))


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type alone
    if error.status_code == 405:
        methods = _methods(request)
        patches = {"Accept-Patch": PARTIAL_UPLOAD} if "PATCH" in methods else {}
        return _answer(request, document("method-not-allowed", "see the header Allow"), {"Allow": methods, **patches})
    slug = _SLUG_OF_STATUS.get(error.status_code, "internal-error" if error.status_code >= 500 else "bad-request")
    return _answer(request, document(slug, PROBLEM_TYPES[slug][1] + "."), error.headers)


def _methods(request: Request) -> str:
    """Return every method of the path; the router's own answer names those of one route only."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


class _Rule(NamedTuple):
    """How an exception is answered. detail: None for the exception's text. log: what happened, with the level.

    named: what of the exception is logged: its text, or, where that holds values from a statement, the driver's type.
    """

    slug: str
    detail: str | None = None
    level: int = logging.NOTSET
    log: str = ""
    named: Callable[[Exception], str] = str
    retry_after: str | None = None


def _cause(error: Exception) -> str:
    return type(getattr(error, "orig", None) or error).__name__


_RULES: Final[dict[type[Exception], _Rule]] = {
    ParameterError: _Rule("invalid-parameters"),
    ContributionError: _Rule("bad-contribution"),
    CodecError: _Rule("bad-request"),
    BlobMissingError: _Rule(
        "internal-error",
        "stored bytes are missing; the error is in the server's log",
        logging.ERROR,
        "stored blob missing: %s",
    ),
    BlobDamagedError: _Rule(
        "internal-error",
        "stored bytes are damaged; the error is in the server's log",
        logging.ERROR,
        "stored blob damaged: %s",
    ),
    BlobsUnavailableError: _Rule(
        "unavailable",
        "the blob store is unavailable; try again",
        logging.ERROR,
        "blob store unavailable: %s",
        retry_after="5",
    ),
    DataError: _Rule(
        "bad-request",
        "a value contains a character or a number that the database cannot store",
        logging.WARNING,
        "a value in the request cannot be stored in the database: %s",
        _cause,
    ),
    **dict.fromkeys(
        DATABASE_GONE,
        _Rule(
            "unavailable",
            "the database does not answer; try again",
            logging.ERROR,
            "database unavailable: %s",
            _cause,
            retry_after="2",
        ),
    ),
}
"""The answers to exceptions that routes are known to raise."""
_NO_DISK: Final = _Rule(
    "unavailable",
    "the server cannot write to its disk; try again",
    logging.ERROR,
    "local disk unavailable: %s",
    lambda error: errno.errorcode[cast(OSError, error).errno or 0],
    retry_after="5",
)


def _by(rule: _Rule) -> Callable[[Request, Exception], Response]:
    def handle(request: Request, error: Exception) -> JSONResponse:
        if rule.level:
            _LOG.log(rule.level, rule.log, rule.named(error), extra=fields(route=_route_of(request)))
        headers = {} if rule.retry_after is None else {"Retry-After": rule.retry_after}
        return _answer(request, document(rule.slug, rule.detail or str(error)), headers)

    return handle


def _system(request: Request, error: Exception) -> Response:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
        return _by(_NO_DISK)(request, error)
    return crashed(request, error)


def crashed(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an unexpected exception, and log its traceback."""
    _LOG.error("unhandled %s", type(error).__name__, exc_info=error, extra=fields(route=_route_of(request)))
    return _answer(
        request, document("internal-error", "the request failed inside the server; the error is in the server's log")
    )


def _route_of(request: Request) -> str:
    return getattr(request.scope.get("route"), "path", "")


def install_problem_handlers(app: FastAPI) -> None:
    """Register a handler for each exception that routes are known to raise; `crashed` answers all others."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OSError, _system)
    for kind, rule in _RULES.items():
        app.add_exception_handler(kind, _by(rule))
