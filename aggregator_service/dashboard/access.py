"""Who is signed in to the dashboard: cookies, forms, and the sign-ins that all replicas share.

The operator token is checked once and not stored. A sign-in is a database row with its hash, so rotating or revoking
the token ends all sign-ins made with it, and a secret, which only the browser has.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import Depends, Form, Request
from sqlalchemy import delete

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import (
    Operator,
    environment_operator,
    find_operator,
    hash_token,
    matches,
    new_token,
)
from aggregator_service.observability.requests import PRINCIPAL, client_address
from aggregator_service.problems import Problem
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.database import Database
from aggregator_service.storage.schema import SignInRow


@dataclass(frozen=True)
class Visitor:
    """A signed-in operator."""

    operator: Operator
    secret_hash: str
    """Key of the sign-in's row."""
    token_hash: str
    form_token: str
    """CSRF token of this sign-in's forms."""

    @property
    def may_act(self) -> bool:
        """Whether this operator may change anything: it is an editor or an administrator."""
        return self.operator.role != "read-only"


def begin_sign_in(services: Services, token: str, address: str) -> str | None:
    """Start a sign-in for the operator with this token; return the browser's secret, or None for an invalid token.

    address: of the browser, for the audit trail.
    """
    token_hash = hash_token(token)
    operator = _operator(services, token_hash)
    if operator is None:
        return None
    secret, now = new_token("hrs"), services.clock.now()
    end = now + services.settings.tuning.sign_in_seconds
    with services.database.write() as session:
        session.execute(delete(SignInRow).where(SignInRow.expires_at <= now))
        session.add(SignInRow(secret_hash=hash_token(secret), token_hash=token_hash, expires_at=end))
        record(session, Actor(operator.name, "dashboard", address, now), "operator signed in", role=operator.role)
    return secret


def find_visitor(services: Services, secret: str) -> Visitor | None:
    """Return the visitor with this secret; None if it is unknown or expired, or if the operator's token is invalid."""
    secret_hash = hash_token(secret)
    with services.database.read() as session:
        row = session.get(SignInRow, secret_hash)
    if row is None or not matches(row.secret_hash, secret_hash):
        return None
    if row.expires_at <= services.clock.now():
        services.clocks.refuse_too_far()
        return None
    operator = _operator(services, row.token_hash)
    return None if operator is None else Visitor(operator, secret_hash, row.token_hash, _form_token(secret))


def end_sign_in(database: Database, visitor: Visitor, actor: Actor) -> None:
    """End the sign-in, in all windows and on all replicas."""
    with database.write() as session:
        session.execute(delete(SignInRow).where(SignInRow.secret_hash == visitor.secret_hash))
        record(session, actor, "operator signed out")


def _operator(services: Services, token_hash: str) -> Operator | None:
    """Return the operator whose token has this hash; None if there is none or the token has expired."""
    environment = environment_operator(services.operator_token_hash, token_hash)
    if environment is not None:
        return environment
    try:
        with services.database.read() as session:
            return find_operator(session, token_hash, services.clock.now())
    except Problem:  # it has expired
        services.clocks.refuse_too_far()
        return None


def _form_token(secret: str) -> str:
    """Return the CSRF token of a sign-in: an HMAC keyed with its secret, which other sites do not know."""
    return hmac.new(secret.encode(), b"hushrec dashboard form", hashlib.sha256).hexdigest()


HOME: Final = "/dashboard"
_MAX_LENGTH: Final = 200


class NotSignedInError(Exception):
    """The browser is not signed in, or its sign-in has ended."""


def cookie(request: Request) -> dict[str, Any]:
    """Return name, path and flags of the cookie with the secret, as `Response.set_cookie` takes them.

    Scripts cannot read it, and it is not sent with requests from other sites. With the prefix `__Host-` only this host
    can set it, and only over TLS.
    """
    flags = {"httponly": True, "samesite": "strict"}
    if request.url.scheme == "https":
        return {"key": "__Host-hushrec", "path": "/", "secure": True, **flags}
    return {"key": "hushrec", "path": request.scope.get("root_path", "") + HOME, "secure": False, **flags}


def secret_of(request: Request) -> str | None:
    """Return the secret in the request's cookie, or None."""
    secret = request.cookies.get(cookie(request)["key"])
    return secret if secret and len(secret) <= _MAX_LENGTH else None


def visitor(services: ServicesOf, request: Request) -> Visitor:
    """Return the visitor who is signed in.

    Raises `NotSignedInError`; `Problem` too-many-requests over the operator's rate limit.
    """
    secret = secret_of(request)
    found = None if secret is None else find_visitor(services, secret)
    if found is None:
        raise NotSignedInError
    request.scope[PRINCIPAL] = found.operator
    services.limits.operator(found.token_hash)
    request.state.visitor = found  # error pages show it
    return found


VisitorOf = Annotated[Visitor, Depends(visitor)]


def editor(found: VisitorOf) -> Visitor:
    """Return the visitor. Raises `Problem` forbidden if the role is read-only."""
    if not found.may_act:
        raise Problem("forbidden", "Your token is read-only: it cannot change anything.")
    return found


EditorOf = Annotated[Visitor, Depends(editor)]


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
    """Return the visitor who sent one of this server's forms. Raises `Problem` forbidden for any other form."""
    refuse_foreign(request)
    if not matches(form_token, found.form_token):
        raise Problem("forbidden", "This form belongs to an earlier sign-in. Go back, reload the page and try again.")
    return found


SenderOf = Annotated[Visitor, Depends(poster)]


def acting(services: ServicesOf, found: SenderOf) -> Visitor:
    """Return the visitor who sent a form that changes something.

    Raises `Problem`: forbidden as `poster` and `editor`; unavailable while the clock of this server is wrong.
    """
    services.clocks.refuse_too_far()
    return editor(found)


_ActingOf = Annotated[Visitor, Depends(acting)]


def _poster_as_actor(services: ServicesOf, request: Request, found: SenderOf) -> Actor:
    return Actor(found.operator.name, "dashboard", client_address(request.scope), services.clock.now())


def _acting_as_actor(services: ServicesOf, request: Request, found: _ActingOf) -> Actor:
    return _poster_as_actor(services, request, found)


SenderActorOf = Annotated[Actor, Depends(_poster_as_actor)]
"""The visitor who sent a form that changes nothing but its sign-in, for the audit trail."""
EditorActorOf = Annotated[Actor, Depends(_acting_as_actor)]
"""The visitor who sent a form that changes something, for the audit trail."""
