"""Sign-ins: a database row, which all replicas share, and a secret, which only the browser has.

The operator token is checked once and not stored. The row contains its hash, so rotating or revoking the token ends all
sign-ins made with it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass

from sqlalchemy import delete

from aggregator_service.access.operator_tokens import environment_operator, find_operator
from aggregator_service.access.principals import Operator
from aggregator_service.access.tokens import hash_token, matches, new_token
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.schema import SignInRow

__all__ = ["Visitor", "begin", "end", "find"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Visitor:
    """A signed-in operator. secret_hash: key of the sign-in's row; form_token: CSRF token of this sign-in's forms."""

    operator: Operator
    secret_hash: str
    token_hash: str
    form_token: str

    @property
    def may_act(self) -> bool:
        """Whether this operator can extend and abort rounds."""
        return self.operator.role != "read-only"


def begin(services: Services, token: str) -> str | None:
    """Start a sign-in for the operator with this token; return the browser's secret, or None for an invalid token."""
    token_hash = hash_token(token)
    operator = _operator(services, token_hash)
    if operator is None:
        return None
    secret, now = new_token("hrs"), services.clock.now()
    with services.database.write() as session:
        session.execute(delete(SignInRow).where(SignInRow.expires_at <= now))
        session.add(
            SignInRow(
                secret_hash=hash_token(secret),
                token_hash=token_hash,
                expires_at=now + services.settings.sign_in_seconds,
            )
        )
    _LOG.info("operator signed in", extra=fields(operator=operator.name, role=operator.role))
    return secret


def find(services: Services, secret: str) -> Visitor | None:
    """Return the visitor with this secret; None if it is unknown or expired, or if the operator's token is invalid."""
    secret_hash = hash_token(secret)
    with services.database.read() as session:
        row = session.get(SignInRow, secret_hash)
    if row is None or not matches(row.secret_hash, secret_hash) or row.expires_at <= services.clock.now():
        return None
    operator = _operator(services, row.token_hash)
    return None if operator is None else Visitor(operator, secret_hash, row.token_hash, _form_token(secret))


def end(services: Services, visitor: Visitor) -> None:
    """End the sign-in, in all windows and on all replicas."""
    with services.database.write() as session:
        session.execute(delete(SignInRow).where(SignInRow.secret_hash == visitor.secret_hash))
    _LOG.info("operator signed out", extra=fields(operator=visitor.operator.name))


def _operator(services: Services, token_hash: str) -> Operator | None:
    """Return the operator whose token has this hash; None if there is none or the token has expired."""
    environment = environment_operator(services.operator_token_hash, token_hash)
    if environment is not None:
        return environment
    try:
        with services.database.read() as session:
            return find_operator(session, token_hash, services.clock.now())
    except Problem:  # it has expired
        return None


def _form_token(secret: str) -> str:
    """Return the CSRF token of a sign-in: an HMAC keyed with its secret, which other sites do not know."""
    return hmac.new(secret.encode(), b"hushrec dashboard form", hashlib.sha256).hexdigest()
