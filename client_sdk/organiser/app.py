"""An HTTP endpoint that issues certificates, to be mounted beside the organiser's own login.

    app = create_issuer(Organiser.open("organiser"), scopes=["movies"], authorise=account_of)

`authorise` is the login: it is given the HTTP request and the certificate request, and returns the subject. Without it,
one-time codes from `hushrec organiser codes` are the login.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from client_sdk.organiser.organiser import DEFAULT_LIFETIME, Organiser
from protocols.codec import b64encode
from protocols.errors import ParameterError
from protocols.messages.certificates import CertificateRequest, IssuedCertificate, OrganiserView

__all__ = ["Authorise", "NotAuthorised", "create_issuer"]

Authorise = Callable[[Request, CertificateRequest], str | Awaitable[str]]
"""Who asks: returns the subject, or raises `NotAuthorised`."""


class NotAuthorised(Exception):
    """The login does not let this request have a certificate; the text is shown to the client."""


class _UnknownScope(Exception):
    """The endpoint issues nothing for this scope."""


def create_issuer(
    organiser: Organiser,
    *,
    scopes: Collection[str],
    authorise: Authorise | None = None,
    lifetime: int = DEFAULT_LIFETIME,
) -> FastAPI:
    """The issuing endpoint as an ASGI application.

    scopes: those it issues for. authorise: the login; one-time codes by default. lifetime: seconds for which a
    certificate holds. Errors are problem documents (RFC 9457).
    """
    login = authorise or _code_login(organiser)
    app = FastAPI(title="HushRec organiser", docs_url=None, redoc_url=None)

    @app.get("/v1/organiser", summary="Show the organiser's public key")
    def show() -> OrganiserView:
        """The key that clients pin: compare it with the one that came with the app."""
        key = b64encode(organiser.public_key)
        return OrganiserView(organiser_key=key, scopes=sorted(scopes), lifetime_seconds=lifetime)

    @app.post("/v1/certificates", summary="Issue a certificate", status_code=201)
    async def issue(request: Request, wanted: CertificateRequest) -> IssuedCertificate:
        """Certify the keys of whoever the login says is asking; again for the same keys, with a later expiry."""
        _require_scope(wanted.scope)
        found = login(request, wanted)
        subject = await found if inspect.isawaitable(found) else found
        return await run_in_threadpool(organiser.issue, wanted, subject, lifetime)

    @app.get("/v1/revocations", summary="Download the revocation list", response_class=Response)
    def revocations(scope: str = Query(description="Name of the scope.")) -> Response:
        """The signed list of certificates that hold no longer, as bytes."""
        _require_scope(scope)
        return Response(organiser.revocations(scope).encode(), media_type="application/octet-stream")

    def _require_scope(scope: str) -> None:
        if scope not in scopes:
            raise _UnknownScope(f"nothing is issued here for scope {scope!r}")

    _install_problem_handlers(app)
    return app


def _code_login(organiser: Organiser) -> Authorise:
    """One-time codes: `Authorization: Bearer hoc_...`."""

    async def authorise(request: Request, wanted: CertificateRequest) -> str:
        scheme, _, code = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not code:
            raise NotAuthorised("send a code in the header Authorization: Bearer <code>")
        subject = await run_in_threadpool(organiser.issued.subject_of, code.strip(), wanted.scope, wanted.role)
        if subject is None:
            raise NotAuthorised("the code is not known for this scope and role")
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
        return problem(422, "Malformed request", f"{place}: {first['msg']}")
