"""The cookie, and what a request must show: that somebody is signed in and, to act, that the form is our own."""

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
_LONGEST: Final = 200


class NotSignedInError(Exception):
    """Nobody is signed in, or no longer."""


def _cookie(request: Request) -> tuple[str, str]:
    """Name and path. Under TLS no other host, and no unencrypted page, can have set a cookie of this name."""
    secure = request.url.scheme == "https"
    return ("__Host-hushrec", "/") if secure else ("hushrec", request.scope.get("root_path", "") + HOME)


def remember(request: Request, response: Response, secret: str, seconds: float) -> None:
    """Give the browser its secret, which no script can read and no other site can have sent."""
    name, path = _cookie(request)
    secure = request.url.scheme == "https"
    response.set_cookie(name, secret, int(seconds), path=path, secure=secure, httponly=True, samesite="strict")


def forget(request: Request, response: Response) -> None:
    """Take the secret away."""
    name, path = _cookie(request)
    secure = request.url.scheme == "https"
    response.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="strict")


def secret_of(request: Request) -> str | None:
    """What the browser holds."""
    secret = request.cookies.get(_cookie(request)[0])
    return secret if secret and len(secret) <= _LONGEST else None


def visitor(services: ServicesOf, request: Request) -> Visitor:
    """Who is signed in; `NotSignedInError`, or 429 too-many-requests."""
    secret = secret_of(request)
    found = None if secret is None else sign_ins.find(services, secret)
    if found is None:
        raise NotSignedInError
    services.limits.operator(found.token_hash)
    request.state.visitor = found  # for pages that say no
    return found


VisitorOf = Annotated[Visitor, Depends(visitor)]


def actor(found: VisitorOf) -> Visitor:
    """Who is signed in, if they may act."""
    if not found.may_act:
        raise Problem("forbidden", "Your token is read-only: it shows everything and changes nothing.")
    return found


ActorOf = Annotated[Visitor, Depends(actor)]


def refuse_foreign(request: Request) -> None:
    """403 for a form that was not sent from a page of this server.

    Browsers say where a form comes from, and say it in a header that a proxy does not rewrite where they can.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        ours = site == "same-origin"
    else:
        origin = urlsplit(request.headers.get("origin", ""))
        ours = origin.scheme in ("http", "https") and origin.netloc == request.headers.get("host")
    if not ours:
        raise Problem("forbidden", "This form was not sent from a page of this dashboard. Go back and try again there.")


FormToken = Annotated[str, Form(max_length=_LONGEST)]


def poster(request: Request, found: VisitorOf, form_token: FormToken = "") -> Visitor:
    """Who is signed in and sent one of our own forms."""
    refuse_foreign(request)
    if not matches(form_token, found.form_token):
        raise Problem("forbidden", "This form is of an earlier sign-in. Go back, reload the page, and try again.")
    return found


PosterOf = Annotated[Visitor, Depends(poster)]
