"""An HTTP endpoint that issues certificates; an app mounts it next to its own login.

    app = create_issuer(Organiser.open("organiser"), scopes=["movies"], authorise=account_of)

`authorise` authenticates a request: it receives the HTTP request and the certificate request, and returns the subject.
The role in the certificate request is the client's wish: only `roles` are certified, members by default. Without
`authorise`, clients authenticate with one-time codes from `hushrec organiser codes`, each made for one role.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, get_args

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.organiser import DEFAULT_LIFETIME, Organiser, check_lifetime
from protocols.codec import b64encode
from protocols.crypto.certificates import CertifiedRole, check_scope
from protocols.errors import ParameterError
from protocols.messages.members import CertificateRequest, IssuedCertificate, OrganiserView
from protocols.parameter_text import fault_text

Authorise = Callable[[Request, CertificateRequest], str | Awaitable[str]]
"""Authenticates a request: returns the subject, or raises `NotAuthorised`."""
_MOST_BODY_BYTES: Final = 4096
"""Longest body that is read of a request, which nobody has authenticated yet. A certificate request takes 400 bytes."""
_BODY_SECONDS: Final = 10.0


class NotAuthorised(Exception):
    """The request is not authenticated (401). The message is sent to the client."""


class _BodyInTime:
    """ASGI middleware that answers 408 when the body of a request has not arrived 10 s after its head."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        end, is_whole = asyncio.get_running_loop().time() + _BODY_SECONDS, False

        async def receive_in_time() -> Message:
            nonlocal is_whole
            if is_whole:  # what follows says that the client is gone
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time", {"Connection": "close"}) from None
            is_whole = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time if scope["type"] == "http" else receive, send)


class _UnknownScope(Exception):
    """The endpoint does not issue certificates for this scope (404)."""


def create_issuer(
    organiser: Organiser,
    *,
    scopes: Collection[str],
    authorise: Authorise | None = None,
    roles: Sequence[CertifiedRole] = ("member",),
    lifetime: int = DEFAULT_LIFETIME,
) -> FastAPI:
    """Return the issuing endpoint as an ASGI application.

    scopes: the scopes to issue certificates for. authorise: authenticates requests; one-time codes by default. roles:
    what a subject that `authorise` returned may be certified as; a code certifies the role that it was made for,
    whatever `roles` are. lifetime: validity of a certificate, in seconds. Errors are problem documents (RFC 9457),
    but for FastAPI's own answers to bodies of more than 4 KiB (413) and to those that take more than 10 s (408).

    Raises `ParameterError` for unknown roles, for a scope or a lifetime that no certificate can have.
    """
    check_lifetime(lifetime)
    for scope in scopes:
        check_scope(scope)
    if not roles or not set(roles) <= set(get_args(CertifiedRole)):
        raise ParameterError(f"roles must be a list of {', '.join(get_args(CertifiedRole))}, got {roles!r}")
    login = authorise or _code_login(organiser)
    app = FastAPI(title="HushRec organiser", docs_url=None, redoc_url=None, max_body_size=_MOST_BODY_BYTES)

    @app.get("/v1/organiser", summary="Show the organiser's public key")
    def show() -> OrganiserView:
        """Return the public key that clients pin; compare it with the one that came with the app."""
        key = b64encode(organiser.public_key)
        return OrganiserView(organiser_key=key, scopes=sorted(scopes), lifetime_seconds=lifetime)

    @app.post("/v1/certificates", summary="Issue a certificate", status_code=201)
    async def issue(request: Request, asked: CertificateRequest) -> IssuedCertificate:
        """Certify the keys of the authenticated subject. A later request for these keys renews the certificate."""
        _require_scope(asked.scope)
        found = login(request, asked)
        subject = await found if inspect.isawaitable(found) else found
        allowed = (asked.role,) if authorise is None else roles  # a code was checked against the role
        return await run_in_threadpool(organiser.issue, asked, subject, lifetime, allowed)

    @app.get("/v1/revocations", summary="Download the revocation list", response_class=Response)
    def revocations(scope: str = Query(description="Name of the scope.")) -> Response:
        """Return the signed list of revoked certificates, as bytes."""
        _require_scope(scope)
        return Response(organiser.revocations(scope).encode(), media_type="application/octet-stream")

    def _require_scope(scope: str) -> None:
        if scope not in scopes:
            raise _UnknownScope(f"this endpoint issues no certificates for scope {scope!r}")

    _install_problem_handlers(app)
    app.add_middleware(_BodyInTime)
    return app


def _code_login(organiser: Organiser) -> Authorise:
    """Return an `Authorise` for one-time codes: `Authorization: Bearer hoc_...`."""

    async def authorise(request: Request, asked: CertificateRequest) -> str:
        scheme, _, code = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not code:
            raise NotAuthorised("send a code in the header Authorization: Bearer <code>")
        subject = await run_in_threadpool(organiser.issued.subject_of, code.strip(), asked.scope, asked.role)
        if subject is None:
            raise NotAuthorised(
                f"the code is not valid: ask the organiser for one for scope {asked.scope!r} and role {asked.role!r}"
            )
        return subject

    return authorise


def _install_problem_handlers(app: FastAPI) -> None:
    def problem(status: int, title: str, detail: str) -> JSONResponse:
        body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        return JSONResponse(body, status, media_type="application/problem+json")

    @app.exception_handler(NotAuthorised)
    async def refused(_request: Request, error: NotAuthorised) -> JSONResponse:
        return problem(401, "Not authorised", str(error))

    @app.exception_handler(_UnknownScope)
    async def unknown(_request: Request, error: _UnknownScope) -> JSONResponse:
        return problem(404, "Unknown scope", str(error))

    @app.exception_handler(ParameterError)
    async def impossible(_request: Request, error: ParameterError) -> JSONResponse:
        return problem(409, "No certificate can be issued", str(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return problem(422, "Malformed request", f"{place}: {fault_text(first)}")
