"""The session cookie and the dependencies of the pages: signed-in visitor, permission to act, own form."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Form, Request, Response

from aggregator_service.access.tokens import matches
from aggregator_service.dashboard import sign_ins
from aggregator_service.dashboard.sign_ins import Visitor
from aggregator_service.problems import Problem
from aggregator_service.services import ServicesOf

__all__ = [
    "HOME",
    "ActorOf",
    "FormToken",
    "NotSignedInError",
    "PosterOf",
    "VisitorOf",
    "forget",
    "refuse_foreign",
    "remember",
    "secret_of",
]

HOME: Final = "/dashboard"
_MAX_LENGTH: Final = 200


class NotSignedInError(Exception):
    """The browser is not signed in, or its sign-in has ended."""


def _cookie(request: Request) -> tuple[str, str]:
    """Return name and path of the cookie. With the prefix `__Host-` only this host can set it, and only over TLS."""
    secure = request.url.scheme == "https"
    return ("__Host-hushrec", "/") if secure else ("hushrec", request.scope.get("root_path", "") + HOME)


def remember(request: Request, response: Response, secret: str, seconds: float) -> None:
    """Set the cookie with the secret: not readable by scripts, not sent with requests from other sites."""
    name, path = _cookie(request)
    secure = request.url.scheme == "https"
    response.set_cookie(name, secret, int(seconds), path=path, secure=secure, httponly=True, samesite="strict")


def forget(request: Request, response: Response) -> None:
    """Delete the session cookie in the browser; does not end the sign-in at the server."""
    name, path = _cookie(request)
    secure = request.url.scheme == "https"
    response.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="strict")


def secret_of(request: Request) -> str | None:
    """Return the secret in the request's cookie, or None."""
    secret = request.cookies.get(_cookie(request)[0])
    return secret if secret and len(secret) <= _MAX_LENGTH else None


def visitor(services: ServicesOf, request: Request) -> Visitor:
    """Return the visitor who is signed in.

    Raises: `NotSignedInError`; `Problem` too-many-requests over the operator's rate limit.
    """
    secret = secret_of(request)
    found = None if secret is None else sign_ins.find(services, secret)
    if found is None:
        raise NotSignedInError
    services.limits.operator(found.token_hash)
    request.state.visitor = found  # error pages show it
    return found


VisitorOf = Annotated[Visitor, Depends(visitor)]


def actor(found: VisitorOf) -> Visitor:
    """Return the visitor. Raises: `Problem` forbidden if the role is read-only."""
    if not found.may_act:
        raise Problem("forbidden", "Your token is read-only: it cannot change anything.")
    return found


ActorOf = Annotated[Visitor, Depends(actor)]


def refuse_foreign(request: Request) -> None:
    """Raise `Problem` forbidden for a form that was not sent from a page of this server.

    Uses `Sec-Fetch-Site`, which no proxy rewrites; compares `Origin` with `Host` for browsers that do not send it.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        own = site == "same-origin"
    else:
        origin = urlsplit(request.headers.get("origin", ""))
        own = origin.scheme in ("http", "https") and origin.netloc == request.headers.get("host")
    if not own:
        raise Problem(
            "forbidden", "This form was not sent from a page of this dashboard. Open the dashboard and try again."
        )


FormToken = Annotated[str, Form(max_length=_MAX_LENGTH)]


def poster(request: Request, found: VisitorOf, form_token: FormToken = "") -> Visitor:
    """Return the visitor who sent one of this server's forms. Raises: `Problem` forbidden for any other form."""
    refuse_foreign(request)
    if not matches(form_token, found.form_token):
        raise Problem("forbidden", "This form belongs to an earlier sign-in. Go back, reload the page and try again.")
    return found


PosterOf = Annotated[Visitor, Depends(poster)]
